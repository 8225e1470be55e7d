"""Hostile logs through all that reads them: `python -m benchmarks.hostile`.

Makes thousands of whole files of every dialect (Ansor v0.2 to v0.6, AutoTVM 0.2, MetaSchedule databases,
mixed, gz, damaged gz, bombs) and takes each through what `fleet` does with it, in child processes with limits
of time and memory. Then what import accepted is offered to a real device of this host, on the way that `fleet
collect` plans by. Folders of strangers (datasets, models, backups, recordings) go through what opens them.
The same seed gives the same files; `--only N` runs one of them again. What is counted: `docs/hostile.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import Figures, benchmark, option, working_folder
from benchmarks.hostile_child import folder_names, kind_of, network_names, questions_of, stages_of_log
from benchmarks.hostile_corpus import CORPUS, corpus_names, make_case
from benchmarks.hostile_live import run_live
from benchmarks.hostile_run import SLOW_STAGES, Found, Question, run, split_by_training

#: Cases of a run; they hold over 100,000 lines.
FILES = 3_000
#: Folders of strangers, and network files, in a run.
FOLDERS, NETWORKS = 400, 600
#: Cases between two looks at the clock, where the run goes on for some minutes.
_ROUND = 300
#: Larger reproductions are made again by their number instead of being kept.
_MOST_KEPT_BYTES = 2 << 20
_KEPT = Path("runs/hostile")
_WORKERS = min(2, len(os.sched_getaffinity(0)))


def _case(text: str) -> str:
    if not text.isdigit() and kind_of(text) is None and text not in corpus_names():
        raise argparse.ArgumentTypeError(f"{text} is neither a number nor in {CORPUS}")
    return text


@dataclass(frozen=True)
class Options:
    """What is made, and where the files of finds go."""

    files: int = option(FILES, "generated cases", least=0)
    folders: int = option(FOLDERS, "generated folders of strangers", least=0)
    networks: int = option(NETWORKS, "generated network files", least=0)
    minutes: float = option(0.0, "go on with new cases for so long")
    seed: int = option(0, "of all cases")
    live: int = option(100, "candidates offered to a real device; 0 for none", least=0)
    only: str | None = option(None, "one case: its number, or a name", parse=_case)
    keep: Path = option(_KEPT, "folder for the files of what is found")


def questions(options: Options) -> Iterator[list[Question]]:
    """Cases to run, in rounds: the corpus, then as many generated ones as were asked for."""
    if options.only is not None:
        yield questions_of([options.only])
        return
    yield questions_of(corpus_names())
    yield questions_of(folder_names(options.folders))
    yield questions_of(network_names(options.networks))
    until = time.monotonic() + 60 * options.minutes
    for start in itertools.count(0, _ROUND):
        stop = start + _ROUND if start >= options.files else min(start + _ROUND, options.files)
        if start >= options.files and time.monotonic() >= until:
            return
        yield [Question(case=str(one), stages=stages_of_log(one)) for one in range(start, stop)]


def keep(find: Figures, folder: Path, seed: int) -> None:
    """Keep the files of a find's first case, if they are small, and say where and how to run it again."""
    case = find["case"]
    if case in corpus_names():
        find["kept"] = str(CORPUS / case)
    elif case.isdigit() or kind_of(case):
        find["again"] = f"python -m benchmarks.hostile --seed {seed} --only {case}"
    if not case.isdigit():
        return
    made = make_case(seed, int(case), "/tmp/hostile-markers")
    if sum(len(data) for _, data in made.files) <= _MOST_KEPT_BYTES:
        place = folder / f"{seed}-{case}"
        made.write(place)
        find["kept"] = str(place)


def measure(options: Options) -> Figures:
    """Run everything."""
    found = Found()
    live: Figures = {}
    with working_folder() as folder:
        (markers := folder / "markers").mkdir()
        for number, asked in enumerate(questions(options)):
            for part in split_by_training(asked):
                place = folder / f"round-{number}"
                run(part, place, seed=options.seed, markers=markers, found=found, workers=_WORKERS)
                shutil.rmtree(place, ignore_errors=True)
        before = len(list(markers.iterdir()))
        if options.only is None and options.live:
            live = run_live(folder / "live", markers, found, seed=options.seed, candidates=options.live)
        executed = sorted(one.name for one in markers.iterdir())
    if executed:
        first = executed[0].split("-")[1]
        found.find("import" if before else "live", "executed", first, str(executed[:5]))
    if live.get("reached_device"):
        found.find("live", "reached a device as it came", "live", json.dumps(live))
    if not live.get("module_is_ours", True):
        found.find("live", "a claimed module is used", "live", json.dumps(live))
    ran = len(executed) + live.get("ended_by_exit", 0)
    for find in found.finds.values():
        keep(find, options.keep, options.seed)
    return report(found, ran, live, options)


def report(found: Found, executed: int, live: Figures, options: Options) -> Figures:
    """The JSON object that is printed; its keys are told in `docs/hostile.md`."""
    stages, dialects = found.stages, found.dialects
    slow = [tally for name, tally in stages.items() if name not in (*SLOW_STAGES, "live")]
    return {
        "files": sum(counts["files"] for counts in dialects.values()),
        "lines": sum(counts["made_lines"] for counts in dialects.values()),
        "executed": executed,
        "crashes": sum(tally.crashes for tally in stages.values()),
        "hangs": sum(tally.hangs for tally in stages.values()),
        "longest_secs": max((tally.longest_secs for tally in slow), default=0.0),
        "peak_memory_mb": max((tally.peak_memory_mb for tally in stages.values()), default=0.0),
        "unaccounted_lines": sum(counts["unaccounted"] for counts in dialects.values()),
        "attacks": sum(counts["markers"] for counts in dialects.values()),
        "by_dialect": {name: dict(counts) for name, counts in sorted(dialects.items())},
        "by_stage": {name: asdict(tally) for name, tally in stages.items()},
        "live": live or None,
        "corpus": len(corpus_names()),
        "seed": options.seed,
        "finds": sorted(found.finds.values(), key=lambda find: -find["times"]),
    }


main = benchmark(
    "hostile", __doc__, Options, measure, fails=lambda result: result["finds"] or result["executed"]
)

if __name__ == "__main__":
    main()
