"""Types of arrays by what they hold; shapes stand where the arrays are described."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
#: Row numbers, of a dataset unless another table is named.
Rows = Ints
#: Workload of each row.
Groups = NDArray[np.int32]
Mask = NDArray[np.bool_]
