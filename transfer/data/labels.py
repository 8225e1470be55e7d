"""What the cost model learns: how near a candidate comes to the best one of its workload.

The label of TLP and TenSet: least latency of the workload on the device over the latency of
the candidate, in (0, 1], taken over the rows at hand and never over rows held out. A candidate that was not
measured, or failed, has no label (NaN): a failure is told by `Dataset.failed`, never by a huge latency.
"""

from __future__ import annotations

import numpy as np

from transfer.arrays import Floats, Groups
from transfer.errors import DatasetError


def check_latency(latency_secs: Floats) -> None:
    """Refuse latencies that no clock gives.

    Args:
        latency_secs: Seconds, any shape; NaN where there is no measurement.

    Raises:
        DatasetError: A value is zero, negative or infinite.
    """
    bad = ~np.isnan(latency_secs) & ~((latency_secs > 0) & np.isfinite(latency_secs))
    if bad.any():
        raise DatasetError(
            f"{int(bad.sum())} latencies are not finite and above 0 (first: {latency_secs[bad][0]}); "
            "a candidate without a latency must be NaN, so mend or drop those records"
        )


def group_min(values: Floats, group: Groups, groups: int) -> Floats:
    """Least value of each group, column by column; NaN values are passed over.

    Args:
        values: (N, D) values, NaN where missing.
        group: (N,) index of the group of each row, below `groups`.
        groups: Number of groups W.

    Returns:
        (W, D) minima, NaN where a group has no value in a column.
    """
    least = np.full((groups, values.shape[1]), np.inf)
    np.minimum.at(least, group, np.where(np.isnan(values), np.inf, values))
    least[np.isinf(least)] = np.nan
    return least


def relative_speed(latency_secs: Floats, group: Groups, groups: int) -> Floats:
    """Labels of the rows given: least latency of the (workload, device) over the latency.

    Args:
        latency_secs: (N, D) seconds, NaN where there is no measurement.
        group: (N,) index of the workload of each row.
        groups: Number of workloads.

    Returns:
        (N, D) labels in (0, 1], NaN where there is no measurement.

    Raises:
        DatasetError: A latency is zero, negative or infinite.
    """
    check_latency(latency_secs)
    labels: Floats = group_min(latency_secs, group, groups)[group] / latency_secs
    return labels
