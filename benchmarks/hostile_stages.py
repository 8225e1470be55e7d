"""What opens hostile logs, networks and the folders of strangers, stage by stage. Runs in a child process.

Each stage calls what the command line calls, on a store of the case's own. An error that `fleet` would print
as one line is a refusal; anything else that is raised is a crash. `benchmarks.hostile_child` takes the time
and the memory. An export that holds an attack is a crash; scripts are in `test_cli_lookup`.
"""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agents.errors import AgentError
from agents.networks.network_name import NetworkRefusedError
from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Protocol, Replay
from benchmarks.fleet_up import verb
from benchmarks.harness import run_bounded
from benchmarks.hostile_corpus import WORKLOADS
from benchmarks.hostile_folders import BOARD as DEVICE
from benchmarks.hostile_folders import VERSION, WORKLOAD, record, spoil_records
from benchmarks.made_up import put_measured
from fleet.daemon.replay_files import ready
from fleet.datasets.dataset_files import RECORDS
from fleet.errors import FleetError
from fleet.interchange.export_store import FORMATS, export
from fleet.store.store import Store
from transfer.errors import TransferError

#: What `fleet.cli.app` turns into one clear line.
TYPED = (FleetError, AgentError, TransferError, OSError)
#: Workloads and candidates of each that are replayed.
_REPLAYED = 4
#: Seconds that the confined process may take to read some archives.
_READER_SECS = 280.0
#: What no copy of an archive may hold of an attack.
_ATTACKS = (b"__import__", b"mkdir", b"torch.os", b"antigravity")
#: Seconds that the real command may take in all; more than any file may.
_COMMAND_SECS = 60.0


class Unaccounted(Exception):  # noqa: N818 - a finding, not a fault of this program
    """Lines went in of which nothing came out."""


@dataclass
class Work:
    """One case while it goes through the stages."""

    folder: Path
    #: Beginning of the names of folders that code of the case would make.
    marker: str
    #: Files, lines and attacks; of the import what became of the lines.
    counts: dict[str, int] = field(default_factory=dict)
    #: Why a part of the stage was refused.
    refusal: str = ""

    @property
    def store(self) -> Path:
        """Folder of the case's store."""
        return self.folder / "store"

    @property
    def logs(self) -> Path:
        """Folder of the case's files."""
        return self.folder / "network" / "logs"

    def log(self) -> Path:
        """Path of the case's log."""
        return next(path for path in self.logs.iterdir() if path.name != WORKLOADS)

    def attempt(self, act: Callable[[], object]) -> None:
        """Do a part of a stage, which may be refused."""
        try:
            act()
        except TYPED as refusal:
            self.refusal = str(refusal)


def expected_lines(data: bytes) -> int:
    """Lines of a plain file, as `docs/import.md` counts them: a last line without an end counts."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def import_case(work: Work) -> None:
    """`fleet import`, by the function that the command calls.

    Raises:
        Unaccounted: The report does not add up, to the file or to the store.
    """
    from fleet.interchange.import_logs import ImportRequest, import_logs

    request = ImportRequest(
        paths=(work.log(),), device_id=DEVICE, devices_folder=work.folder / "no-device-files", again=True
    )
    with Store.open(work.store) as store:
        report = import_logs(store, request).to_json()
    imported, rejected = report["imported"], sum(report["rejected_by_reason"].values())
    kept = sum(counts.records for counts in Store.read(work.store).counts().values())
    data = work.log().read_bytes()
    lines = report["lines"] if data.startswith(b"\x1f\x8b") else expected_lines(data)
    missing = abs(lines - imported - report["duplicates"] - rejected) + abs(kept - imported)
    work.counts |= {"imported": imported, "rejected": rejected, "unaccounted_lines": missing}
    if missing:
        raise Unaccounted(f"{lines} lines in the file, {kept} records in the store: {report}")


def command_case(work: Work) -> None:
    """`fleet import` as a person gives it; what it prints may hold nothing that a terminal obeys.

    Raises:
        AssertionError: It ended otherwise than with one clear line, or printed control characters.
    """
    command = verb("import", "--device", DEVICE, "--store", "cli-store", "--", str(work.log()))
    ended = run_bounded(command, _COMMAND_SECS)
    printed = ended.printed + ended.errors
    assert ended.code in (0, 1), f"fleet import ended with {ended.code}: {printed[-500:]!r}"
    assert "Traceback" not in printed, f"fleet import raised: {printed[-500:]!r}"
    controls = {sign for sign in printed if sign < " " or sign == "\x7f"} - {"\n", "\t"}
    assert not controls, f"fleet import printed {controls}: {printed[-500:]!r}"
    last_line = ended.errors.rstrip().rpartition("\n")[2]
    assert ended.code == 0 or last_line.startswith("fleet: "), f"no clear line: {ended.errors!r}"


def dataset_case(work: Work) -> None:
    """What `fleet train` reads: all records as a dataset."""
    from fleet.models.versions import load_snapshot

    load_snapshot(Store.read(work.store))


def training_case(work: Work) -> None:
    """`fleet train`, one pass over the data."""
    from fleet.config.settings import load_fleet
    from fleet.models.training import train_version

    settings = load_fleet(None, {"store.path": str(work.store), "training.epochs": 1}).config
    train_version(settings, work.folder / "models", [], compute="cpu")


def replay_case(work: Work) -> None:
    """A replay device that answers from the imported records, then from the same file with a fault in it."""
    from agents.device.replay_records import check_apart

    devices = Store.read(work.store).devices()
    if DEVICE not in devices:
        raise FleetError("nothing was imported")
    spec = replay_spec(work, work.store, devices[DEVICE].spec.family)
    replay_all(spec)
    assert spec.replay is not None
    faulty = work.folder / "faulty.parquet"
    shutil.copyfile(spec.replay.records, faulty)
    spoil_records(random.Random(work.marker), faulty)
    # As `fleet` does before an agent opens a file: libraries may end the process that reads it.
    work.attempt(lambda: check_apart(faulty, DEVICE))
    if not work.refusal:
        replay = Replay(records=str(faulty), device=DEVICE, noise=True, failures=True)
        work.attempt(lambda: replay_all(replace(spec, replay=replay)))


def replay_spec(work: Work, records: Path, family: Family = Family.CPU) -> DeviceSpec:
    """The spec of a device that replays records of a store or of a file."""
    replayed = DeviceId("replayed")
    spec = DeviceSpec(
        device_id=replayed,
        kind=DeviceKind.REPLAY,
        family=family,
        target_json="{}",
        replay=Replay(records=str(records), device=DEVICE, noise=True, failures=True),
    )
    return ready({replayed: spec}, work.folder / "replay")[replayed]


def replay_all(spec: DeviceSpec) -> None:
    """Propose, evolve and measure on a replay device."""
    from agents.device.messages import Batch
    from agents.device.replay import ReplayWorker, open_records
    from agents.programs.networks import NETWORKS
    from benchmarks.harness import drawn

    with closing(open_records(spec)) as records, closing(ReplayWorker(spec, records)) as worker:
        for workload in worker.network_workloads(sorted(NETWORKS))[:_REPLAYED]:
            candidates = drawn(worker, workload, _REPLAYED)
            parents = [candidate.trace for candidate in candidates[:2]]
            candidates += drawn(worker, workload, _REPLAYED, parents=parents)
            workloads = {workload.workload_id: workload}
            worker.measure(Batch(candidates=tuple(candidates), workloads=workloads, protocol=Protocol()))


def export_case(work: Work) -> None:
    """`fleet export` in every other format."""
    reader = Store.read(work.store)
    for form in ("ansor", "autotvm", "meta_schedule"):
        place = work.folder / f"export-{form}"
        work.attempt(partial(export, reader, place, form, [DEVICE]))


def archive_case(work: Work) -> None:
    """The check of an archive, which writes it again.

    Raises:
        AssertionError: The refusal is not one line, or the copy still holds the attack.
    """
    from agents.networks.archive import rewrite_archive

    copy = io.BytesIO()
    try:
        with work.log().open("rb") as opened:
            inputs = rewrite_archive(opened, copy, "network.pt2")
    except NetworkRefusedError as refusal:
        if not str(refusal).isprintable():
            raise AssertionError(f"the refusal is not one line: {refusal!r}") from None
        raise
    left = [attack for attack in _ATTACKS if attack in copy.getvalue() + inputs]
    assert not left, f"the copy holds {left}"


def reader_case(work: Work) -> None:
    """Some archives in the confined process of `fleet workloads FILE`.

    Raises:
        AssertionError: It did not answer for each of them.
    """
    from agents.networks.reader import ask

    files = [str(path) for path in work.logs.iterdir()]
    question = {"op": "workloads", "networks": files, "family": Family.CPU}
    try:
        answer = ask(question, timeout_secs=_READER_SECS)
    except NetworkRefusedError as error:
        raise AssertionError(f"the process did not answer for each file: {error}") from error
    assert set(files) == {*answer["workloads"], *answer["refused"]}
    assert all(reason.isprintable() for reason in answer["refused"].values()), answer["refused"]


def open_dataset_case(work: Work) -> None:
    """`fleet datasets open` into a store of ours, then exports and training data of it.

    Raises:
        AssertionError: An export for other tuners holds a stranger's attack.
    """
    from fleet.datasets.admission import open_dataset
    from fleet.models.versions import load_snapshot

    with Store.open(work.store) as store:
        put_measured(store, DEVICE, [WORKLOAD], [record(99)])
        open_dataset(work.logs, store)
    reader = Store.read(work.store)
    for form in FORMATS:
        with suppress(*TYPED):
            paths = export(reader, work.folder / f"export-{form}", form).files
            # Parquet is data; the other forms are read by tuners that replay what they find.
            is_attack = form != "parquet" and any(work.marker.encode() in path.read_bytes() for path in paths)
            assert not is_attack, f"the export as {form} holds an attack"
    load_snapshot(reader)


def load_models_case(work: Work) -> None:
    """All that reads a folder of models: who serves, cards, the history, and the model itself."""
    from fleet.models.registry_reader import RegistryReader
    from fleet.models.shipped_model import read_shipped
    from fleet.models.views import show_version
    from fleet.report.model_card import write_card
    from transfer.model import checkpoint

    def cards() -> None:
        shown = show_version(RegistryReader(work.logs), VERSION)
        for ending in ("md", "html"):
            write_card(shown, work.folder / f"card.{ending}")

    def champions() -> None:
        registry = RegistryReader(work.logs)
        registry.history()
        for champion in registry.champions().values():
            registry.load(champion.ref)

    work.attempt(cards)
    work.attempt(champions)
    work.attempt(lambda: checkpoint.load(work.logs / VERSION))
    work.attempt(lambda: read_shipped(Family.CPU, work.logs / VERSION))


def restore_backup_case(work: Work) -> None:
    """`fleet store verify` of a backup and `fleet store restore`, and what is restored is read."""
    from fleet.archive.backup import restore, verify_backup
    from fleet.archive.verify import verify

    work.attempt(lambda: verify_backup(work.logs))
    restore(work.logs, work.folder / "restored")
    verify(work.folder / "restored")


def replay_file_case(work: Work) -> None:
    """A replay device of a stranger's file, as its device file names it."""
    replay_all(replay_spec(work, work.logs / RECORDS))


#: Stages by name, in their order.
STAGES: dict[str, Callable[[Work], None]] = {
    "import": import_case,
    "command": command_case,
    "dataset": dataset_case,
    "replay": replay_case,
    "export": export_case,
    "training": training_case,
    "archive": archive_case,
    "reader": reader_case,
    "open-dataset": open_dataset_case,
    "load-models": load_models_case,
    "restore-backup": restore_backup_case,
    "replay-file": replay_file_case,
}
