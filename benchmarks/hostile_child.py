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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TextIO

import pyarrow as pa

from benchmarks.hostile_corpus import Case, corpus_case, make_case
from benchmarks.hostile_datasets import make_dataset
from benchmarks.hostile_model_folders import make_backup, make_models
from benchmarks.hostile_networks import make_archive
from benchmarks.hostile_run import Question, own_secs
from benchmarks.hostile_stages import STAGES, TYPED, Unaccounted, Work, counts_of
from benchmarks.made_up import own_mb
from fleet.json_types import JsonDict

#: Archives that one confined process reads: it takes some ten seconds to start.
_TOGETHER = 6
#: One network file in so many goes through that process.
_READ_EVERY = 10
#: Stages of a find of the corpus.
_CORPUS_STAGES = ("import", "command", "dataset", "replay", "export", "training")


@dataclass(frozen=True)
class Kind:
    """One kind of case."""

    stage: str
    #: Writes a folder, given dice and the marker of an attack.
    folder: Callable[[Random, Path, str], None] | None = None
    #: Network files in one case.
    networks: int = 1


KINDS = {
    "dataset": Kind("open-dataset", make_dataset),
    "models": Kind("load-models", lambda rng, folder, _: make_models(rng, folder)),
    "backup": Kind("restore-backup", lambda rng, folder, _: make_backup(rng, folder)),
    "recording": Kind("replay-file", make_dataset),
    "network": Kind("archive"),
    "networks": Kind("reader", networks=_TOGETHER),
}
_FOLDERS = [name for name, kind in KINDS.items() if kind.folder is not None]


def folder_names(count: int) -> list[str]:
    """Names of so many folders of strangers, the kinds in turn."""
    return [f"{_FOLDERS[number % len(_FOLDERS)]}-{number}" for number in range(count)]


def network_names(count: int) -> list[str]:
    """Names of the cases of so many network files.

    Each is checked, which most do not pass; some are read then: some attacks on the graph pass the check,
    without what they carry.
    """
    groups = range(0, count // _READ_EVERY, _TOGETHER)
    return [*(f"network-{number}" for number in range(count)), *(f"networks-{start}" for start in groups)]


def kind_of(name: str) -> Kind | None:
    """The kind that a name tells; None of a log."""
    kind, _, number = name.partition("-")
    return KINDS.get(kind) if number.isdigit() else None


def questions_of(names: Iterable[str]) -> list[Question]:
    """Named cases, each through the stage of its kind; a log through all of a find."""
    kinds = {name: kind_of(name) for name in names}
    return [
        Question(case=name, stages=(kind.stage,) if kind else _CORPUS_STAGES) for name, kind in kinds.items()
    ]


def stages_of_log(number: int) -> tuple[str, ...]:
    """Stages of a generated log: all are imported and read, some replayed, exported and trained on."""
    stages = ["import"]
    if number % 75 == 0:
        stages.append("command")
    stages.append("dataset")
    if number % 4 == 0:
        stages += ["replay", "export"]
    if number % 25 == 1:
        stages.append("training")
    return tuple(stages)


def case_of(name: str, seed: int, markers: str) -> Case:
    """Make a case.

    Args:
        name: Of the case.
        seed: Of all cases.
        markers: Folder in which code of the case would make a folder.
    """
    if name.isdigit():
        return make_case(seed, int(name), markers)
    kind = kind_of(name)
    if kind is None:
        return corpus_case(name, markers)
    word, _, number = name.partition("-")
    if (write := kind.folder) is None:
        return _networks(name, int(number), kind.networks, seed, markers)
    marker = f"{markers}/{seed}-{name}"
    return Case(
        name=name,
        dialect=word,
        form="folder",
        files=((word.encode(), b""),),
        lines=0,
        make=lambda folder: write(Random(f"hostile/{seed}/{name}"), folder, marker),
        marker=marker,
    )


def _networks(name: str, first: int, count: int, seed: int, markers: str) -> Case:
    """One network file, or some together."""
    several = [make_archive(seed, first + more, markers) for more in range(count)]
    if count == 1:
        return several[0]
    return replace(
        several[0],
        name=name,
        dialect="network reader",
        files=tuple((f"{place}.pt2".encode(), case.files[0][1]) for place, case in enumerate(several)),
        markers=sum(case.markers for case in several),
    )


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
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(root)]
    place = f"{frames[-1].filename[len(root) + 1 :]}:{frames[-1].name}" if frames else "elsewhere"
    return f"{type(error).__name__} in {place}"


def run_stage(name: str, run: Callable[[Work], None], work: Work) -> JsonDict:
    """Take a case through one stage, which is the function `run`.

    Returns:
        How it ended (`ok`, `refused`, `crash`, `unaccounted`), what was raised, seconds and memory.
    """
    forget_peak()
    started_before_mb = started_peak_mb()
    began = own_secs(os.getpid())
    ended, text, kind = "ok", "", ""
    try:
        run(work)
        if name in work.refusals:
            ended, text = "refused", work.refusals[name]
    except TYPED as refusal:
        ended, text = "refused", str(refusal)
    except Unaccounted as fault:
        ended, text, kind = "unaccounted", str(fault), "Unaccounted"
    except Exception as error:
        ended, kind = "crash", where(error)
        text = "".join(traceback.format_exception(error, limit=-6))[-2000:]
    started_mb = started_peak_mb()
    # The kernel never forgets that peak: an earlier case has it, unless it has risen.
    most_mb = max(own_mb("VmHWM"), started_mb if started_mb > started_before_mb else 0.0)
    return {
        "ended": name,
        "how": ended,
        "kind": kind,
        "text": text[:2000],
        "secs": own_secs(os.getpid()) - began,
        "peak_mb": most_mb,
    }


def serve(asked: TextIO, events: TextIO, stages: Mapping[str, Callable[[Work], None]]) -> None:
    """Answer until nothing more is asked."""

    def tell(event: JsonDict) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    for line in asked:
        question = json.loads(line)
        tell({"began": "making"})
        case = case_of(question["case"], question["seed"], question["markers"])
        folder = Path(tempfile.mkdtemp(dir=question["folder"]))
        work = Work(case, folder)
        try:
            os.chdir(folder)
            case.write(work.logs)
            for name in question["stages"]:
                tell({"began": name})
                told = run_stage(name, stages[name], work)
                tell(told)
                # Without a store there is nothing further to read.
                if name == "import" and not work.store.exists():
                    break
        finally:
            os.chdir(question["folder"])
            shutil.rmtree(folder, ignore_errors=True)
        tell({"done": case.name, "dialect": case.dialect, "form": case.form, **counts_of(work)})


def main(stages: Mapping[str, Callable[[Work], None]] = STAGES) -> None:
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
