"""How fast logs of other tools become durable records: `python -m benchmarks.imports --json`.

Reads the real logs in `../shared/data` beside the checkout. In the dialect `knobs` a configuration counts as
a line. `miopen` are solvers in that dialect, by themselves because each problem is a workload of its own;
`problems_read_per_s` is their reader without a store.
Each dialect is imported into a new store by a process of its own that is bound to one core; the clock runs
from opening the store to its closing, so parsing, hashing, compression and waiting for the disk are in it,
the start of Python is not. `lines_per_s` is the slower of AutoTVM and Ansor, `configurations_per_s` that of
`knobs`; MetaSchedule's lines are ten times longer and are told apart.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figures, benchmark, child_json, option, working_folder

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

#: Dialects that `lines_per_s` is about, and what must be reached.
FAST = ("autotvm", "ansor")

#: Run in a process of its own, so that the memory of one dialect is not that of another. Arguments: folder of
#: the stores, core, JSON of {device: [paths]}.
_CHILD = """
import json, os, pathlib, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.store.store import Store
def run(name):
    reports = []
    with Store.open(pathlib.Path(sys.argv[1]) / name) as store:
        for device, paths in json.loads(sys.argv[3]).items():
            request = ImportRequest(paths=tuple(map(pathlib.Path, paths)), device_id=device, again=True)
            reports.append(import_logs(store, request).to_json())
    return reports
clock = time.perf_counter()
reports = run("store")
secs = time.perf_counter() - clock
again = run("store")
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps({"secs": secs, "peak_mb": peak_kb / 1024, "reports": reports, "again": again}))
"""

#: Reads the databases of find problems that are named, each by a reader of its own.
_READER = """
import gc, json, os, pathlib, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
from fleet.interchange.line_reader import LineReader
gc.disable()  # as an import does
began, problems = time.process_time(), 0
for path in json.loads(sys.argv[2]):
    _, entries = LineReader().open(pathlib.Path(path))
    problems += len({entry.workload for entry in entries if not isinstance(entry, Exception)})
print(json.dumps({"problems": problems, "cpu_secs": time.process_time() - began}))
"""


def plan(data: Path) -> Mapping[str, Mapping[str, list[Path]]]:
    """Files by dialect and device; MetaSchedule's databases lie among Ansor's logs."""
    found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for folder in sorted((data / "autotvm_dropletsearch").glob("*/")):
        found["autotvm"][folder.name.lower()].append(folder)
    for path in sorted((data / "ansor_bennu").rglob("*.*")):
        if path.is_file() and path.suffix != ".md":
            dialect, name = (
                ("meta_schedule", "bennu_ms") if path.name.startswith("database_") else ("ansor", "bennu")
            )
            found[dialect][f"{name}_{_family(path)}"].append(path)
    for path in sorted((data / "kernel_tuner_hub").glob("*/*.gz")):
        found["knobs"][path.name.split(".")[0].removesuffix("_T4").lower()].append(path)
    databases = sorted((data / "miopen_find_db").glob("*.fdb.txt.bz2"), key=lambda path: path.stat().st_size)
    # The smallest: each of its 59,000 problems becomes a file of the store.
    for path in databases[:1]:
        found["miopen"][path.name.split(".")[0]].append(path)
    return found


def _family(path: Path) -> str:
    from fleet.interchange.dialects.meta_schedule import workload_file
    from fleet.interchange.line_reader import LineReader
    from fleet.interchange.logs.catalog import Measurement

    tuning = path.with_name(path.name.replace("_workload", "_tuning_record"))
    _, lines = LineReader().open(tuning if workload_file(tuning) == path else path, with_companion=False)
    measured = (
        entry.environment.machine.target.family.value for entry in lines if isinstance(entry, Measurement)
    )
    return next(measured, "unknown")


def import_dialect(devices: Mapping[str, list[Path]], folder: Path, core: int) -> Figures:
    """Import the files of one dialect twice; the second time nothing may be new."""
    request = {device: [str(path) for path in paths] for device, paths in devices.items()}
    found = child_json(["-c", _CHILD, str(folder), str(core), json.dumps(request)])
    reports = found["reports"]

    def total(key: str, among: Sequence[Figures] = reports) -> int:
        return sum(report[key] for report in among)

    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report["rejected_by_reason"])
    lines = total("lines")
    return {
        "devices": len(devices),
        "files": total("files"),
        "lines": lines,
        "imported": total("imported"),
        "duplicates": total("duplicates"),
        "rejected_by_reason": reasons,
        "unaccounted_lines": lines - total("imported") - total("duplicates") - reasons.total(),
        "lines_per_s": lines / found["secs"],
        "again_imported": total("imported", found["again"]),
        "secs": found["secs"],
        "workloads_new": total("workloads_new"),
        "peak_memory_mb": found["peak_mb"],
    }


def read_problems(devices: Mapping[str, list[Path]], core: int) -> float | None:
    """Problems of MIOpen's databases that are read per CPU second, without a store; None without any."""
    paths = [str(path) for several in devices.values() for path in several]
    if not paths:
        return None
    read = child_json(["-c", _READER, str(core), json.dumps(paths)])
    return float(read["problems"] / read["cpu_secs"])


@dataclass(frozen=True)
class Options:
    """What is imported, and where."""

    data: Path = option(DATA, "folder of the logs")


def measure(options: Options) -> Figures:
    """Import all dialects, where the logs are there."""
    if not options.data.is_dir():
        return {
            "skipped": f"{options.data} is absent: the logs lie beside the checkout",
            **dict.fromkeys(("lines_per_s", "peak_memory_mb", "unaccounted_lines")),
        }
    dialects: Figures = {}
    core = max(os.sched_getaffinity(0))
    planned = plan(options.data)
    for dialect, devices in planned.items():
        with working_folder() as folder:
            dialects[dialect] = import_dialect(devices, folder, core)
    fast = [dialects[dialect]["lines_per_s"] for dialect in FAST if dialect in dialects]
    return {
        "lines_per_s": min(fast, default=None),
        "configurations_per_s": dialects.get("knobs", {}).get("lines_per_s"),
        "problems_read_per_s": read_problems(planned.get("miopen", {}), core),
        "peak_memory_mb": max((one["peak_memory_mb"] for one in dialects.values()), default=None),
        "unaccounted_lines": sum(one["unaccounted_lines"] for one in dialects.values()),
        "lines": sum(one["lines"] for one in dialects.values()),
        "dialects": dialects,
    }


main = benchmark("imports", __doc__, Options, measure)

if __name__ == "__main__":
    main()
