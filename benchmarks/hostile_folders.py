"""Folders of strangers through what opens them: datasets, models, backups, and files to replay.

`benchmarks.hostile_child` calls it. A case is a name, such as `dataset-12`; the same seed gives the same
folder. A script of a trace that attacks, or an export that holds one, counts as if it had run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Replay, unknown_descriptor
from benchmarks.hostile_corpus import Case
from benchmarks.hostile_datasets import WORKLOAD, device, make_dataset, record
from benchmarks.hostile_model_folders import VERSION, make_backup, make_models
from fleet.datasets.dataset_files import RECORDS

if TYPE_CHECKING:
    from benchmarks.hostile_stages import Work
    from fleet.store.reader import StoreReader


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderCase(Case):
    """A folder of a stranger.

    Attributes:
        make: Writes it.
        marker: Folder that a trace in it would make where it is replayed.
    """

    make: Callable[[Path], None]
    marker: str

    def write(self, folder: Path) -> None:
        """Make the folder."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.make(folder)


def folder_names(count: int) -> list[str]:
    """Names of so many cases, the kinds in turn."""
    kinds = list(_KINDS)
    return [f"{kinds[number % len(kinds)]}-{number}" for number in range(count)]


def is_folder_case(name: int | str) -> bool:
    """Whether a case is one of these."""
    kind, _, number = str(name).partition("-")
    return kind in _KINDS and number.isdigit()


def folder_stages(name: str) -> tuple[str, ...]:
    """Stages of a case."""
    return (_KINDS[name.partition("-")[0]][1],)


def folder_case(name: str, seed: int, markers: str) -> FolderCase:
    """One case."""
    kind = name.partition("-")[0]
    marker = f"{markers}/{seed}-{name}"
    return FolderCase(
        name=name,
        dialect=kind,
        form="folder",
        files=((kind.encode(), b""),),
        lines=0,
        make=lambda folder: _KINDS[kind][0](Random(f"hostile/{seed}/{name}"), folder, marker),
        marker=marker,
    )


def open_dataset_case(work: Work) -> None:
    """`fleet datasets open` into a store of ours, then scripts, pages, exports and training data of it."""
    from fleet.datasets.admission import open_dataset
    from fleet.interchange.export_store import FORMATS, export
    from fleet.models.versions import load_snapshot
    from fleet.store.store import Store

    with Store.open(work.store) as store:
        store.put_device(device("board"), unknown_descriptor(DeviceId("board")))
        store.put_workloads([WORKLOAD], own=True)
        store.append([record(99)])
        open_dataset(work.logs, store)
    reader = Store.read(work.store)
    case = work.case
    assert isinstance(case, FolderCase)
    for candidate_id in {one.candidate_id for one in reader.records(device_id="lab.board")}:
        if any(_scripts(reader, candidate_id)):
            Path(f"{case.marker}-script").mkdir(exist_ok=True)
    for form in FORMATS:
        place = work.folder / f"export-{form}"
        with suppress(*_typed()):
            files = export(reader, place, form).files
            # Parquet is data; the other forms are read by tuners that replay what they find.
            if form != "parquet" and any(case.marker.encode() in path.read_bytes() for path in files):
                Path(f"{case.marker}-{form}").mkdir(exist_ok=True)
    load_snapshot(reader)


def _scripts(reader: StoreReader, candidate_id: str) -> Iterator[str]:
    """The scripts of a candidate that the page and `fleet show --script` hand out."""
    from fleet.cli.lookup import _script
    from fleet.coverage.lookup import find
    from fleet.dashboard.candidate_view import candidate_view

    view = candidate_view(reader, WORKLOAD.workload_id, candidate_id, ["lab.board", "board"])
    yield view["script"]
    found = find(reader, candidate_id)
    assert found is not None
    with suppress(*_typed()):
        yield _script(reader, found)


def _typed() -> tuple[type[Exception], ...]:
    from benchmarks.hostile_stages import TYPED

    return TYPED


def load_models_case(work: Work) -> None:
    """All that reads a folder of models: who serves, cards, the history, and the model itself."""
    from fleet.models.registry_reader import RegistryReader
    from fleet.models.shipped_model import read_shipped
    from fleet.models.views import show_version
    from fleet.report.model_card import write_card
    from transfer.model import checkpoint

    refusals: list[str] = []

    def attempt(act: Callable[[], Any]) -> None:
        try:
            act()
        except _typed() as refusal:
            refusals.append(str(refusal))

    def cards() -> None:
        shown = show_version(RegistryReader(work.logs), VERSION)
        for ending in ("md", "html"):
            write_card(shown, work.folder / f"card.{ending}")

    def champions() -> None:
        registry = RegistryReader(work.logs)
        registry.history()
        for one in registry.champions().values():
            registry.load(one.ref)

    attempt(cards)
    attempt(champions)
    attempt(lambda: checkpoint.load(work.logs / VERSION))
    attempt(lambda: read_shipped(Family.CPU, work.logs / VERSION))
    if refusals:
        work.refusals["load-models"] = refusals[0]


def restore_backup_case(work: Work) -> None:
    """`fleet store verify` of a backup and `fleet store restore`, and what is restored is read."""
    from fleet.archive.backup import restore, verify_backup
    from fleet.archive.verify import verify

    with suppress(*_typed()):
        verify_backup(work.logs)
    restore(work.logs, work.folder / "restored")
    verify(work.folder / "restored")


def replay_file_case(work: Work) -> None:
    """A replay device of a stranger's file, as its device file names it."""
    from benchmarks.hostile_stages import replay_all
    from fleet.daemon.replay_files import ready

    spec = DeviceSpec(
        device_id=DeviceId("replayed"),
        kind=DeviceKind.REPLAY,
        family=Family.CPU,
        target_json="{}",
        replay=Replay(records=str(work.logs / RECORDS), device=DeviceId("board"), noise=True, failures=True),
    )
    replay_all(ready({spec.device_id: spec}, work.folder / "replay")[spec.device_id])


_Make = Callable[[Random, Path, str], None]
#: By kind: what writes a folder of it, and the stage that it goes through.
_KINDS: dict[str, tuple[_Make, str]] = {
    "dataset": (make_dataset, "open-dataset"),
    "models": (lambda rng, folder, _: make_models(rng, folder), "load-models"),
    "backup": (lambda rng, folder, _: make_backup(rng, folder), "restore-backup"),
    "recording": (make_dataset, "replay-file"),
}

#: Stages by name.
FOLDER_STAGES: dict[str, Callable[[Work], None]] = {
    "open-dataset": open_dataset_case,
    "load-models": load_models_case,
    "restore-backup": restore_backup_case,
    "replay-file": replay_file_case,
}
