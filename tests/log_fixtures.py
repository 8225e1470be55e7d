"""Lines of other tools' logs, made up in their documented formats."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from agents.records import Record
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.interchange.import_report import ImportReport
from fleet.interchange.line_reader import LineReader
from fleet.interchange.logs.catalog import Measurement
from fleet.interchange.logs.json_values import Rejected
from fleet.store.store import Store

#: Real logs of other people's devices, beside the checkout; what reads them is skipped where they are absent.
DATA = Path(__file__).parents[2] / "shared" / "data"
AUTOTVM_LOGS = DATA / "autotvm_dropletsearch"
ANSOR_LOGS = DATA / "ansor_bennu"

CPU_TARGET = "llvm -keys=cpu -mcpu=core-avx2"
CUDA_TARGET = "cuda -keys=cuda,gpu -arch=sm_75 -max_num_threads=1024 -thread_warp_size=32"
START = 1_700_000_000

#: A line of each, as its tool writes it.
_AUTOTVM = (
    '{"input": ["TARGET", "conv2d_NCHWc.x86", [["TENSOR", [1, 16, 28, 28], "float32"], '
    '["TENSOR", [32, 16, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"], {}], '
    '"config": {"index": 0, "code_hash": null, "entity": [["tile_ic", "sp", [-1, 1]], '
    '["tile_oc", "sp", [-1, 1]], ["unroll_kw", "ot", true]]}, '
    '"result": [[0.001, 0.0011], 0, 0.75, 0], "version": 0.2, "tvm_version": "0.10.0"}'
)
_ANSOR = (
    '{"i": [["KEY", "TARGET", [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], [["SP", 2, 0, 1, [1, 1, 1], 1], '
    '["SP", 2, 4, 64, [1, 2, 4], 1], ["SP", 2, 8, 32, [1, 4, 2], 1], ["SP", 2, 12, 64, [4], 1], '
    '["RE", 2, [0, 4, 8, 1, 5, 9, 12, 2, 6, 10, 13, 3, 7, 11]], ["AN", 2, 0, 3], '
    '["PR", 2, 0, "auto_unroll_max_step$0"]]]], "r": [[0.002], 0, 1.5, 0], "v": "v0.6"}'
)
_META_SCHEDULE = (
    '[0, [[[["GetBlock", [], ["conv2d_nchw", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]], '
    '["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]], '
    '["SampleCategorical", [], [[0, 16], [0.25, 0.75]], ["v5"]]], [[2, [1, 4]], [3, 1]]], null, '
    '{"kind": "cuda", "arch": "sm_80", "keys": ["cuda", "gpu"], "max_threads_per_block": 1024}, '
    '[["TENSOR", "float32", [1, 16, 28, 28]], ["TENSOR", "float32", [32, 16, 3, 3]], '
    '["TENSOR", "float32", [1, 32, 28, 28]]]]]'
)
ANSOR_KEY = ["0123456789abcdef0123456789abcdef", [1, 64, 64], [1, 64, 32], [1, 64, 32]]


def autotvm(number: int, *, target: str = CPU_TARGET, **changes: Any) -> dict[str, Any]:
    """One line of AutoTVM 0.2; different numbers give different candidates."""
    line: dict[str, Any] = json.loads(_AUTOTVM)
    line["input"][0] = target
    line["config"]["index"] = number
    inner, outer, unroll = line["config"]["entity"]
    inner[2][1], outer[2][1], unroll[2] = 1 + number % 16, 1 + number // 16, number % 2 == 0
    line["result"][0][0] = 1e-3 + number * 1e-6
    line["result"][3] = START + number + 0.25
    return {**line, **changes}


def ansor(number: int, *, target: str = CPU_TARGET, key: Any = ANSOR_KEY, **changes: Any) -> dict[str, Any]:
    """One line of Ansor v0.6."""
    line: dict[str, Any] = json.loads(_ANSOR)
    task, (_, steps) = line["i"]
    task[:2] = json.dumps(key), target
    steps[1][4][0] = 1 + number % 8
    steps[-1][3] = f"auto_unroll_max_step${number // 8}"
    line["r"][0][0] = 2e-3 + number * 1e-6
    line["r"][3] = START + number
    return {**line, **changes}


def meta_schedule(number: int, *, index: int = 0) -> list[Any]:
    """One tuning record of a MetaSchedule database."""
    line: list[Any] = json.loads(_META_SCHEDULE)
    line[0] = index
    trace, *_ = line[1]
    trace[1][0][1][0] = 1 + number
    line[1][1] = [3e-3, 4e-3]
    return line


def module_line(number: int, text: str) -> list[str]:
    """The workload of a MetaSchedule database that has this module, as TVM writes it."""
    raw = text.encode()
    return [str(number), base64.b64encode(len(raw).to_bytes(8, "little") + raw).decode()]


def workload_line(number: int = 0) -> list[str]:
    """One workload of a MetaSchedule database."""
    return module_line(
        2**63 + number, json.dumps({"root_index": number, "nodes": [{"type": "None"}]}, indent=2)
    )


def write_log(path: Path, lines: list[Any]) -> Path:
    """Write lines, given as JSON values, bytes or text; packed where the name says so."""
    parts = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    data = b"".join(part + b"\n" for part in parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def run(folder: Path, *paths: Path, device: str = "dev-a", **more: Any) -> ImportReport:
    """Import files into the store of a folder; every line is accounted for."""
    request = ImportRequest(paths=paths, device_id=device, devices_folder=folder / "none", **more)
    with Store.open(folder / "store") as store:
        report = import_logs(store, request)
    counts = report.counts
    assert report.imported + report.duplicates + counts.rejected.total() == counts.lines
    assert counts.outcomes.total() == counts.valid == counts.lines - counts.rejected.total()
    assert report.unaccounted == 0
    assert set(report.examples) <= set(counts.rejected)
    return report


def run_lines(folder: Path, *lines: Any, **more: Any) -> ImportReport:
    """Import one file, `log.json`, of some lines."""
    return run(folder, write_log(folder / "log.json", [*lines]), **more)


def read_lines(folder: Path, *lines: Any) -> tuple[list[Measurement], Counter[str]]:
    """Measurements of one file, `log.json`, of some lines, and why others are none; without a store."""
    entries = list(LineReader().open(write_log(folder / "log.json", [*lines]))[1])
    reasons = Counter(entry.reason for entry in entries if isinstance(entry, Rejected))
    return [entry for entry in entries if isinstance(entry, Measurement)], reasons


def records(folder: Path, device: str = "dev-a") -> list[Record]:
    """What the store of a folder has of a device."""
    return list(Store.read(folder / "store").records(device_id=device))
