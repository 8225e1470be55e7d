"""Hostile logs through all that reads them: `python -m benchmarks.hostile`.

Makes thousands of whole files of every dialect (Ansor v0.2 to v0.6, AutoTVM 0.2, MetaSchedule databases,
mixed, gz, damaged gz, bombs) and takes each through what `fleet` does with it, in child processes with limits
of time and memory. Then what import accepted is offered to a real device of this host, on the way that `fleet
collect` plans by. Folders of strangers (datasets, models, backups, recordings) go through what opens them.
The same seed gives the same files; `--only N` runs one of them again. What is counted: `docs/hostile.md`.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figures, benchmark, option, working_folder
from benchmarks.hostile_child import folder_names, kind_of, make_case, network_names, question_of
from benchmarks.hostile_corpus import CORPUS, corpus_names
from benchmarks.hostile_live import run_live
from benchmarks.hostile_run import Found, Question, run
from fleet.errors import FleetError

#: Cases between two looks at the clock, where the run goes on for some minutes.
_ROUND = 300
_KEPT = Path("runs/hostile")
_WORKERS = min(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Options:
    """What is made."""

    files: int = option(3_000, "generated logs, which hold over 100,000 lines", least=0)
    folders: int = option(400, "generated folders of strangers", least=0)
    networks: int = option(600, "generated network files", least=0)
    minutes: float = option(0.0, "go on with new cases for so long")
    seed: int = option(0, "of all cases")
    live: int = option(100, "candidates offered to a real device; 0 for none", least=0)
    only: str | None = option(None, "one case: its number, or a name")


def questions(options: Options) -> Iterator[list[Question]]:
    """Cases to run, in rounds: the corpus, then as many generated ones as were asked for.

    Raises:
        FleetError: There is no case of the name that was given.
    """
    if (only := options.only) is not None:
        if not only.isdigit() and kind_of(only) is None and only not in corpus_names():
            raise FleetError(f"{only} is neither a number nor in {CORPUS}")
        yield [question_of(only)]
        return
    for names in (corpus_names(), folder_names(options.folders), network_names(options.networks)):
        yield [question_of(name) for name in names]
    until = time.monotonic() + 60 * options.minutes
    for start in itertools.count(0, _ROUND):
        is_more = start >= options.files
        if is_more and time.monotonic() >= until:
            return
        stop = start + _ROUND if is_more else min(start + _ROUND, options.files)
        yield [question_of(str(number)) for number in range(start, stop)]


def measure(options: Options) -> Figures:
    """Run everything."""
    found = Found()
    live: Figures = {}
    with working_folder() as folder:
        (markers := folder / "markers").mkdir()
        for number, cases in enumerate(questions(options)):
            place = folder / f"round-{number}"
            run(cases, place, seed=options.seed, markers=markers, found=found, workers=_WORKERS)
            shutil.rmtree(place, ignore_errors=True)
        if options.only is None and options.live:
            live = run_live(folder / "live", markers, found, seed=options.seed, candidates=options.live)
        executed = sorted(path.name for path in markers.iterdir())
    if executed:
        case = executed[0].partition("-")[2].partition("+")[0]  # as `marker_of` has it
        found.find("any", "executed", case, str(executed[:5]))
    if live.get("reached_device") or not live.get("module_is_ours", True):
        found.find("live", "reached a device as it came", "live", json.dumps(live))
    for find in found.finds.values():
        keep(find, options.seed)
    return report(found, len(executed) + live.get("ended_by_exit", 0), live)


def keep(find: Figures, seed: int) -> None:
    """Keep the files of a find's first case, and say where and how to run it again."""
    case = find["case"]
    if case in corpus_names():
        find["kept"] = str(CORPUS / case)
    elif case.isdigit() or kind_of(case):
        find["again"] = f"python -m benchmarks.hostile --seed {seed} --only {case}"
        find["kept"] = str(_KEPT / f"{seed}-{case}")
        shutil.rmtree(find["kept"], ignore_errors=True)
        make_case(case, seed, "/tmp/hostile-markers", Path(find["kept"]))


def report(found: Found, executed: int, live: Figures) -> Figures:
    """The JSON object that is printed; `docs/hostile.md` says what its keys mean."""
    totals = {
        name: sum(counts[name] for counts in found.kinds.values())
        for name in ("files", "lines", "attacks", "unaccounted_lines")
    }
    return {
        **totals,
        "executed": executed,
        "crashes": found.count("crash"),
        "hangs": found.count("hang"),
        "longest_secs": found.longest_secs,
        "peak_memory_mb": found.peak_memory_mb,
        "by_stage": {f"{stage}, {how}": count for (stage, how), count in sorted(found.ended.items())},
        "live": live or None,
        "finds": sorted(found.finds.values(), key=lambda find: -find["times"]),
    }


main = benchmark(
    "hostile", __doc__, Options, measure, fails=lambda result: result["finds"] or result["executed"]
)

if __name__ == "__main__":
    main()
