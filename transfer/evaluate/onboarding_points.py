"""What one contender made of k samples of a new device, judged on what is held out.

Made by `transfer.evaluate.onboarding_contenders`; read by `transfer.auto.leave_one_out` and the benchmarks.

Legend: G workloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.evaluate.onboarding_cases import Regime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """How one contender did with k samples on the test rows of one case; arrays are (G,)."""

    contender: str
    regime: Regime
    target: str
    split: str
    seed: int
    #: Samples asked for; None for all there were.
    k: int | None
    #: Samples that were measured.
    measured: int
    groups: NDArray[np.int32]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    tau: NDArray[np.float64]
    #: Wall seconds of adapting, without the model of the sources and without scoring.
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)
