"""What opens the folders of strangers: datasets, models, backups, and files to replay.

The last stages of `benchmarks.hostile_child`. A script of a trace that attacks, or an export that holds one,
counts as if it had run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Replay
from benchmarks.hostile_datasets import WORKLOAD, record
from benchmarks.hostile_model_folders import VERSION
from benchmarks.hostile_stages import TYPED, Work, replay_all
from benchmarks.made_up import put_measured
from fleet.datasets.dataset_files import RECORDS

if TYPE_CHECKING:
    from fleet.store.reader import StoreReader


def open_dataset_case(work: Work) -> None:
    """`fleet datasets open` into a store of ours, then scripts, pages, exports and training data of it."""
    from fleet.datasets.admission import open_dataset
    from fleet.interchange.export_store import FORMATS, export
    from fleet.models.versions import load_snapshot
    from fleet.store.store import Store

    with Store.open(work.store) as store:
        put_measured(store, "board", [WORKLOAD], [record(99)])
        open_dataset(work.logs, store)
    reader = Store.read(work.store)
    marker = work.case.marker
    for candidate_id in {one.candidate_id for one in reader.records(device_id="lab.board")}:
        if any(_scripts(reader, candidate_id)):
            Path(f"{marker}-script").mkdir(exist_ok=True)
    for form in FORMATS:
        place = work.folder / f"export-{form}"
        with suppress(*TYPED):
            files = export(reader, place, form).files
            # Parquet is data; the other forms are read by tuners that replay what they find.
            if form != "parquet" and any(marker.encode() in path.read_bytes() for path in files):
                Path(f"{marker}-{form}").mkdir(exist_ok=True)
    load_snapshot(reader)


def _scripts(reader: StoreReader, candidate_id: str) -> Iterator[str]:
    """The scripts of a candidate that the page and `fleet show --script` hand out."""
    from fleet.cli.lookup import _script
    from fleet.coverage.lookup import find
    from fleet.dashboard.workload_view import candidate_view

    view = candidate_view(reader, WORKLOAD.workload_id, candidate_id, ["lab.board", "board"])
    yield view["script"]
    found = find(reader, candidate_id)
    assert found is not None
    with suppress(*TYPED):
        yield _script(reader, found)


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
        except TYPED as refusal:
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

    with suppress(*TYPED):
        verify_backup(work.logs)
    restore(work.logs, work.folder / "restored")
    verify(work.folder / "restored")


def replay_file_case(work: Work) -> None:
    """A replay device of a stranger's file, as its device file names it."""
    from fleet.daemon.replay_files import ready

    spec = DeviceSpec(
        device_id=DeviceId("replayed"),
        kind=DeviceKind.REPLAY,
        family=Family.CPU,
        target_json="{}",
        replay=Replay(records=str(work.logs / RECORDS), device=DeviceId("board"), noise=True, failures=True),
    )
    replay_all(ready({spec.device_id: spec}, work.folder / "replay")[spec.device_id])


#: Stages by name.
FOLDER_STAGES: dict[str, Callable[[Work], None]] = {
    "open-dataset": open_dataset_case,
    "load-models": load_models_case,
    "restore-backup": restore_backup_case,
    "replay-file": replay_file_case,
}
