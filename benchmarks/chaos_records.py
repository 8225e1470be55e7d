"""What the replay devices of `benchmarks.chaos` answer from: schedules that a small model learns in a second.

The latencies follow from the tiles, so that a training finds something and a challenger is judged on held-out
workloads as in a real fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from agents.host.probe import probe
from agents.records import (
    Candidate,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
)
from benchmarks.made_up import TARGET, record_of
from fleet.interchange.export_store import export
from fleet.models.versions import is_held_out
from fleet.store.store import Store

#: The device that was recorded.
RECORDED = DeviceId("bench")
#: Workloads that are learnt from, and those that the rule holds out: enough to judge a head.
_LEARNT, _HELD = 9, 4
WORKLOADS = _LEARNT + _HELD
_TILES, _INNER, _UNROLLS = 5, 4, 4
#: A matrix multiplication: two loops are tiled, the block is unrolled.
_INSTRUCTIONS = [
    ["GetSBlock", [], ["Z", "main"], ["b0"]],
    ["GetSBlock", [], ["root", "main"], ["b1"]],
    ["GetLoops", ["b0"], [], ["l2", "l3", "l4", "l5"]],
    ["SamplePerfectTile", ["l3"], [4, 64], ["v1", "v2", "v3", "v4"]],
    ["Split", ["l3", "v1", "v2", "v3", "v4"], [True, False], ["l6", "l7", "l8", "l9"]],
    ["SamplePerfectTile", ["l4"], [2, 64], ["v5", "v6"]],
    ["Split", ["l4", "v5", "v6"], [True, False], ["l10", "l11"]],
    ["Reorder", ["l2", "l6", "l7", "l10", "l8", "l5", "l11", "l9"], [], []],
    ["SampleCategorical", [], [[0, 16, 64, 512], [0.25, 0.25, 0.25, 0.25]], ["v7"]],
    ["Annotate", ["b1", "v7"], ["meta_schedule.unroll_explicit"], []],
]


def make_recorded(path: Path) -> None:
    """Write the file that the replay devices answer from."""
    spec = DeviceSpec(device_id=RECORDED, kind=DeviceKind.LOCAL, family=Family.CPU, target_json=TARGET)
    with Store.open(path.parent / "recorded") as store:
        store.put_device(spec, probe())
        store.put_workloads(workloads())
        store.append([record for one in workloads() for record in _records(one)])
        export(store, path, "parquet")


def workloads() -> list[Workload]:
    """Those that are learnt from, then those that are held out."""
    every = [_workload(number) for number in range(40 * _HELD)]
    held = [one for one in every if is_held_out(one)][:_HELD]
    return [one for one in every if not is_held_out(one)][:_LEARNT] + held


def candidates(workload: Workload) -> Iterator[tuple[Candidate, float]]:
    """Unlike candidates of a workload, and the seconds that each takes."""
    for place in range(_TILES * _INNER * _UNROLLS):
        rest, unroll = divmod(place, _UNROLLS)
        tile, inner = rest % _TILES, rest // _TILES
        tiles = [[3, [128 // 2 ** (tile + 1), 2, 1, 2**tile]], [5, [64 // 2**inner, 2**inner]]]
        trace = canonical_json([_INSTRUCTIONS, [*tiles, [8, unroll]]])
        secs = 1e-3 * math.exp(-(tile + 0.3 * inner + 0.2 * unroll) / 2)
        yield Candidate(workload_id=workload.workload_id, trace=trace), secs


def _workload(number: int) -> Workload:
    return Workload(
        workload_id=WorkloadId(f"{number:016x}"),
        name=f"GMM_{number}",
        operator="GMM",
        arg_shapes=((2, 128, 128 + number), (2, 128 + number, 64), (2, 128, 64)),
        arg_dtypes=("float32",) * 3,
        flops=4194304.0,
        networks=(),
        module_json="{}",
    )


def _records(workload: Workload) -> list[Record]:
    return [record_of(one, run_secs=(secs, 1.01 * secs, 1.02 * secs)) for one, secs in candidates(workload)]
