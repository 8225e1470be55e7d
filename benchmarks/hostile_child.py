"""A child process that takes hostile cases through their stages and tells how each went.

Started by `benchmarks.hostile_run`, which ends it where a stage takes too long: nothing here can. One JSON
line in is one case and its stages; the lines out are events, one as a stage begins and one as it ends. A case
is named by its number (a log), by kind and number (`dataset-12`, `network-3`), or by its name in the corpus.
The same name and seed give the same case.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TextIO

import pyarrow as pa

from benchmarks.hostile_corpus import Made, copy_find, make_log
from benchmarks.hostile_folders import make_backup, make_dataset, make_models
from benchmarks.hostile_networks import make_networks
from benchmarks.hostile_run import Question, own_secs
from benchmarks.hostile_stages import STAGES, TYPED, Unaccounted, Work
from benchmarks.made_up import own_mb
from fleet.json_types import JsonDict

#: Archives that one confined process reads: it takes some ten seconds to start.
_TOGETHER = 6
#: One network file in so many goes through that process.
_READ_EVERY = 10
#: Stages of a find of the corpus.
_CORPUS_STAGES = ("import", "command", "dataset", "replay", "export", "training")

#: Writes a case into a new folder, given dice and the beginning of the names of an attack's folders.
Maker = Callable[[Random, Path, str], Made]
#: Stage and maker of each kind of case that is no log.
KINDS: dict[str, tuple[str, Maker]] = {
    "dataset": ("open-dataset", make_dataset),
    "models": ("load-models", make_models),
    "backup": ("restore-backup", make_backup),
    "recording": ("replay-file", make_dataset),
    "network": ("archive", make_networks),
    "networks": ("reader", partial(make_networks, count=_TOGETHER)),
}
_FOLDERS = ("dataset", "models", "backup", "recording")


def folder_names(count: int) -> list[str]:
    """Names of so many folders of strangers, the kinds in turn."""
    return [f"{_FOLDERS[number % len(_FOLDERS)]}-{number}" for number in range(count)]


def network_names(count: int) -> list[str]:
    """Names of the cases of so many network files.

    Each is checked, which most do not pass; some more are read then: some attacks on the graph pass the
    check, without what they carry.
    """
    groups = range(0, count // _READ_EVERY, _TOGETHER)
    return [*(f"network-{number}" for number in range(count)), *(f"networks-{start}" for start in groups)]


def kind_of(name: str) -> tuple[str, Maker] | None:
    """Stage and maker of a named case; None of a log."""
    kind, _, number = name.partition("-")
    return KINDS.get(kind) if number.isdigit() else None


def question_of(name: str) -> Question:
    """A case through its stages: logs are imported and read, some replayed, exported and trained on."""
    if kind := kind_of(name):
        return Question(case=name, stages=(kind[0],))
    if not name.isdigit():
        return Question(case=name, stages=_CORPUS_STAGES)
    number = int(name)
    stages = {
        "import": True,
        "command": number % 75 == 0,
        "dataset": True,
        "replay": number % 4 == 0,
        "export": number % 4 == 0,
        "training": number % 25 == 1,
    }
    return Question(case=name, stages=tuple(stage for stage, is_due in stages.items() if is_due))


def marker_of(name: str, seed: int, markers: str) -> str:
    """Beginning of the paths of folders that code of a case would make."""
    return f"{markers}/{seed}-{name}+"


def make_case(name: str, seed: int, markers: str, folder: Path) -> Made:
    """Write a case.

    Args:
        name: Of the case.
        seed: Of all cases.
        markers: Folder in which code of the case would make a folder.
        folder: To make.
    """
    rng, marker = Random(f"hostile/{seed}/{name}"), marker_of(name, seed, markers)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if name.isdigit():
        return make_log(rng, folder, marker)
    if kind := kind_of(name):
        return kind[1](rng, folder, marker)
    return copy_find(name, folder, marker)


def started_peak_mb() -> float:
    """Most memory of a process that this one ever started and that has ended, in MiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def forget_peak() -> None:
    """Give back what is free and start the peak anew, so that one case does not answer for another."""
    gc.collect()
    pa.default_memory_pool().release_unused()  # a bomb takes memory to make
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def where(error: BaseException) -> str:
    """Kind of an error, and the deepest line of this project that it came through."""
    root = str(Path(__file__).resolve().parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(root)]
    place = f"{frames[-1].filename[len(root) + 1 :]}:{frames[-1].name}" if frames else "elsewhere"
    return f"{type(error).__name__} in {place}"


def run_stage(name: str, run: Callable[[Work], Any], work: Work) -> JsonDict:
    """Take a case through one stage, which is the function `run`.

    Returns:
        How it ended (`ok`, `refused`, `crash`, `unaccounted`), what was raised, seconds and memory.
    """
    forget_peak()
    started_before_mb, began = started_peak_mb(), own_secs(os.getpid())
    how, text, kind = "ok", "", ""
    try:
        run(work)
        if work.refusal:
            how, text = "refused", work.refusal
    except TYPED as refusal:
        how, text = "refused", str(refusal)
    except Unaccounted as fault:
        how, text, kind = "unaccounted", str(fault), "Unaccounted"
    except Exception as error:
        how, kind = "crash", where(error)
        text = "".join(traceback.format_exception(error, limit=-6))
    secs, started_mb = own_secs(os.getpid()) - began, started_peak_mb()
    # The kernel never forgets that peak: an earlier case has it, unless it has risen.
    peak_mb = max(own_mb("VmHWM"), started_mb if started_mb > started_before_mb else 0.0)
    return {"ended": name, "how": how, "kind": kind, "text": text[-2000:], "secs": secs, "peak_mb": peak_mb}


def serve(asked: TextIO, events: TextIO, stages: Mapping[str, Callable[[Work], Any]]) -> None:
    """Answer until nothing more is asked."""

    def tell(event: JsonDict) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    for line in asked:
        question = json.loads(line)
        tell({"began": "making"})
        name, seed, markers = question["case"], question["seed"], question["markers"]
        work = Work(Path(tempfile.mkdtemp(dir=question["folder"])), marker_of(name, seed, markers))
        made = make_case(name, seed, markers, work.logs)
        work.counts |= {"lines": made.lines, "attacks": made.attacks, "files": len(list(work.logs.iterdir()))}
        os.chdir(work.folder)
        for stage in question["stages"]:
            tell({"began": stage})
            work.refusal = ""
            tell(run_stage(stage, stages[stage], work))
            # Without a store there is nothing further to read.
            if stage == "import" and not work.store.exists():
                break
        os.chdir(question["folder"])
        shutil.rmtree(work.folder, ignore_errors=True)
        tell({"done": made.kind, "counts": work.counts})


def main(stages: Mapping[str, Callable[[Work], Any]] = STAGES) -> None:
    """Keep standard output for events: what the program prints goes to standard error.

    Args:
        stages: By name, what a case goes through.
    """
    faulthandler.enable()
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, events, stages)


if __name__ == "__main__":
    main()
