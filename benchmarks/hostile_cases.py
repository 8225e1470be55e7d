"""All kinds of hostile cases: what makes one of a number, and the stages that it goes through.

A case is named by its number (a log), by kind and number (`dataset-12`, `network-3`), or by its name in the
corpus. The same name and seed give the same case. Called by `benchmarks.hostile` and its children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.hostile_corpus import Case, corpus_case, make_case
from benchmarks.hostile_datasets import make_dataset
from benchmarks.hostile_model_folders import make_backup, make_models
from benchmarks.hostile_networks import make_archive
from benchmarks.hostile_run import Question

#: Archives that one confined process reads: it takes some ten seconds to start.
_TOGETHER = 6
#: One network file in so many goes through that process.
_READ_EVERY = 10
#: Stages of a find of the corpus.
_CORPUS_STAGES = ("import", "command", "dataset", "replay", "export", "training")


@dataclass(frozen=True, slots=True)
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
