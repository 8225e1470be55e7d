"""How fast the state file is, and how large: `python -m benchmarks.state --json`.

Turns of 256 results, of four devices each, fill a file of so many millions. At each size the benchmark says
results a second, the size, and how long an opening and four questions take. The first part says how long the
turn takes that acknowledges records: their results, their rows and an event, with one wait for the disk.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agents.records import Candidate, CandidateId, DeviceId, Outcome, Record, WorkloadId
from benchmarks.harness import Figures, Option, benchmark, by_turns, ms_of, working_folder
from benchmarks.store import make_records
from fleet.state.packed_rows import pack, with_device
from fleet.state.rows import Result, result_of
from fleet.state.state_file import StateFile
from fleet.store.delta.schema import records_to_table

_DEVICES = [DeviceId(f"device-{number}") for number in range(10)]
_WORKLOADS = [WorkloadId(f"{number:016x}") for number in range(100)]
_ENVIRONMENT, _FAMILY = "e" * 32, "cpu"
_BATCH, _TURN_DEVICES = 64, 4
#: Candidates whose traces the file holds, those of one workload.
_CANDIDATES = 10_000
_QUESTIONS = 20
_EVENT = json.dumps([{"event": "RecordsStored", "device_id": "bench", "count": 64, "ok": 60}]).encode()


def acknowledgements(folder: Path, batch: int, turns: int) -> dict[str, Any]:
    """Seconds from the arrival of records to their acknowledgement."""
    state = StateFile(folder / "state" / "state.sqlite")
    _take_in(state, make_records(0, batch))  # the first one makes files
    batches = iter([make_records(number * batch, batch) for number in range(1, turns + 1)])
    [secs] = by_turns({"turn": lambda: _take_in(state, next(batches))}, turns).values()
    state.close()
    return {
        "records": batch,
        "turns": turns,
        **ms_of("ms", secs, 95),
    }


def _take_in(state: StateFile, records: Sequence[Record]) -> None:
    with state.turn() as turn:
        flags = turn.add_results(map(result_of, records))
        fresh = [record for record, is_new in zip(records, flags, strict=True) if is_new]
        rows = pack(with_device("bench", records_to_table(fresh)))
        turn.add_waiting(0, [DeviceId("bench")], len(fresh), rows, time.time())
        turn.add_events(_EVENT)


def growth(folder: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Fill a file, and look at it at each size."""
    path = folder / "growing" / "state.sqlite"
    state = StateFile(path)
    _propose(state)
    rng = random.Random(0)
    count, secs, turns = 0, 0.0, list[float]()
    for size in sizes:
        while count < size:
            batches = [_results(rng, count + _BATCH * number) for number in range(_TURN_DEVICES)]
            began = time.perf_counter()
            with state.turn() as turn:
                for batch in batches:
                    turn.add_results(batch)
                turn.add_events(_EVENT)
            turns.append(time.perf_counter() - began)
            secs += turns[-1]
            count += _BATCH * _TURN_DEVICES
            if len(turns) % 1000 == 0:
                with state.turn() as turn:
                    turn.put_snapshot(_EVENT)
        state.close()
        began = time.perf_counter()
        state = StateFile(path)
        opened_secs = time.perf_counter() - began
        yield {
            "results": count,
            "results_per_s": len(turns) * _BATCH * _TURN_DEVICES / secs,
            **ms_of("turn_ms", turns),
            "file_mb": path.stat().st_size / 1e6,
            "open_secs": opened_secs,
            **_questions(state, rng),
        }
        secs, turns = 0.0, []
    state.close()


def _results(rng: random.Random, start: int) -> list[Result]:
    """A lease's worth: new candidates of one workload on one device."""
    workload_id, device_id = rng.choice(_WORKLOADS), rng.choice(_DEVICES)
    return [
        Result(
            workload_id,
            device_id,
            _ENVIRONMENT,
            CandidateId(hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()),
            0,
            Outcome.OK,
            1e-3 + number % 977 * 1e-6,
            1.7e9 + number,
            False,
        )
        for number in range(start, start + _BATCH)
    ]


def _propose(state: StateFile) -> None:
    """Candidates of the first workload, all but the last hundred measured on the first device."""
    traces = [one.trace for one in make_records(0, _CANDIDATES)]
    candidates = [Candidate(workload_id=_WORKLOADS[0], trace=trace) for trace in traces]
    with state.turn() as turn:
        turn.add_candidates(_FAMILY, _WORKLOADS[0], candidates)
        turn.add_results(
            Result(_WORKLOADS[0], _DEVICES[0], "all", one.candidate_id, 0, Outcome.OK, 1e-3, 1.7e9, False)
            for one in candidates[:-100]
        )


def _questions(state: StateFile, rng: random.Random) -> dict[str, Any]:
    """Milliseconds of what a planner asks, medians; workloads by chance, so pages are mostly cold."""

    def timed(ask: Callable[[], object]) -> float:
        return round(1e3 * statistics.median(by_turns({"asked": ask}, _QUESTIONS)["asked"]), 3)

    last = state.gaps(_FAMILY, _WORKLOADS[0], _DEVICES[0], "all", 1)[0][0] - 1
    return {
        # 9,900 of 10,000 candidates are measured: with and without a place to begin at.
        "gaps_from_the_start_ms": timed(lambda: state.gaps(_FAMILY, _WORKLOADS[0], _DEVICES[0], "all", 64)),
        "gaps_ms": timed(lambda: state.gaps(_FAMILY, _WORKLOADS[0], _DEVICES[0], "all", 64, after=last)),
        "best_ms": timed(lambda: state.fastest(rng.choice(_WORKLOADS), rng.choice(_DEVICES), _ENVIRONMENT)),
        "tallies_ms": timed(lambda: state.tallies(rng.choice(_DEVICES))),
    }


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    millions: Annotated[tuple[float, ...], Option("sizes of the growing file", metavar="N")] = (1, 3, 10)
    turns: Annotated[int, Option("acknowledgements of a batch", least=1, metavar="N")] = 200
    folder: Annotated[Path | None, Option("folder on the disk to measure")] = None


def measure(options: Options) -> Figures:
    """Run all parts."""
    with working_folder(beside=options.folder) as root:
        arrivals = []
        for batch in (1, 16, 64, 1000):
            (root / str(batch)).mkdir()
            turns = max(10, options.turns // (1 + batch // 100))
            arrivals.append(acknowledgements(root / str(batch), batch, turns))
        sizes = [int(1e6 * number) for number in sorted(options.millions)]
        return {"benchmark": "state", "acknowledgements": arrivals, "growth": list(growth(root, sizes))}


main = benchmark("state", __doc__, Options, measure)

if __name__ == "__main__":
    main()
