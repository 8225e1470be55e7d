"""What opens hostile logs, networks and the folders of strangers, stage by stage. Runs in a child process.

Each stage calls what the command line calls, on a store of the case's own. An error that `fleet` would print
as one line is a refusal; anything else that is raised is a crash. `benchmarks.hostile_child` takes the time
and the memory. A script of a trace that attacks, or an export that holds one, counts as if it had run.
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agents.errors import AgentError
from agents.host.process_control import environment
from agents.networks.network_name import NetworkRefusedError
from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Protocol, Replay
from benchmarks.hostile_corpus import Case
from benchmarks.hostile_datasets import WORKLOAD, faulty_footer, faulty_values, record
from benchmarks.hostile_model_folders import VERSION
from benchmarks.hostile_values import damaged
from benchmarks.made_up import put_measured
from fleet.daemon.replay_files import ready
from fleet.datasets.dataset_files import RECORDS
from fleet.errors import FleetError
from fleet.interchange.export_store import FORMATS, export
from fleet.store.store import Store
from transfer.errors import TransferError

if TYPE_CHECKING:
    from fleet.store.reader import StoreReader

#: What `fleet.cli.app` turns into one clear line.
TYPED = (FleetError, AgentError, TransferError, OSError)
DEVICE = DeviceId("board")
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

    case: Case
    folder: Path
    #: Of the import: `lines`, `imported`, `duplicates`, `rejected`, and lines without an account.
    counts: Counter[str] = field(default_factory=Counter)
    #: Where each stage was refused.
    refusals: dict[str, str] = field(default_factory=dict)

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
        return self.logs / os.fsdecode(self.case.files[0][0])


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
    counts = work.counts
    counts.update({name: report[name] for name in ("lines", "imported", "duplicates")})
    counts["rejected"] = sum(report["rejected_by_reason"].values())
    kept = sum(one.records for one in Store.read(work.store).counts().values())
    data = work.case.files[0][1]
    lines = report["lines"] if data.startswith(b"\x1f\x8b") else expected_lines(data)
    accounted = counts["imported"] + counts["duplicates"] + counts["rejected"]
    counts["unaccounted"] = abs(lines - accounted) + abs(kept - counts["imported"])
    if counts["unaccounted"]:
        raise Unaccounted(f"{lines} lines in the file, {kept} records in the store: {dict(counts)}")


def command_case(work: Work) -> None:
    """`fleet import` as a person gives it; what it prints may hold nothing that a terminal obeys.

    Raises:
        AssertionError: It ended otherwise than with one clear line, or printed control characters.
    """
    command = [sys.executable, "-P", "-m", "fleet.cli", "import", "--device", DEVICE, "--store", "cli-store"]
    command += [*(["--json"] if len(work.case.name) % 2 else []), "--", str(work.log())]
    done = subprocess.run(
        command, cwd=work.folder, env=environment(), capture_output=True, timeout=_COMMAND_SECS, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode in (0, 1), f"fleet import ended with {done.returncode}: {told[-500:]!r}"
    assert b"Traceback" not in told, f"fleet import raised: {told[-500:]!r}"
    bad = sorted({byte for byte in told if byte < 32 and byte not in b"\n\t"} | ({127} & {*told}))
    assert not bad, f"fleet import printed the bytes {bad}: {told[-500:]!r}"
    assert done.returncode == 0 or done.stderr.rstrip().rpartition(b"\n")[2].startswith(b"fleet: "), (
        f"no clear line: {done.stderr!r}"
    )


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

    spec = replay_spec(work)
    replay_all(spec)
    assert spec.replay is not None
    faulty = faulty_copy(Path(spec.replay.records), random.Random(work.case.name), work.folder)
    try:
        # As `fleet` does before an agent opens a file: libraries may end the process that reads it.
        check_apart(faulty, DEVICE)
        replay_all(spec, Replay(records=str(faulty), device=DEVICE, noise=True, failures=True))
    except TYPED as refusal:
        work.refusals["replay"] = str(refusal)


def replay_spec(work: Work) -> DeviceSpec:
    """The spec of a device that replays the case's records."""
    known = Store.read(work.store).devices()
    if DEVICE not in known:
        raise FleetError("nothing was imported")
    spec = replace(
        known[DEVICE].spec,
        device_id=DeviceId("replayed"),
        kind=DeviceKind.REPLAY,
        target_json="{}",
        replay=Replay(records=str(work.store), device=DEVICE),
    )
    return ready({spec.device_id: spec}, work.folder / "replay")[spec.device_id]


def replay_all(spec: DeviceSpec, changed: Replay | None = None) -> None:
    """Propose, evolve and measure on a replay device."""
    from agents.device.messages import Batch
    from agents.device.replay import ReplayWorker
    from agents.programs.networks import NETWORKS
    from benchmarks.harness import drawn

    if changed is not None:
        spec = replace(spec, replay=changed)
    with closing(ReplayWorker(spec)) as worker:
        for workload in worker.network_workloads(sorted(NETWORKS))[:_REPLAYED]:
            candidates = drawn(worker, workload, _REPLAYED)
            parents = [one.trace for one in candidates[:2]]
            candidates += drawn(worker, workload, _REPLAYED, parents=parents)
            worker.measure(
                Batch(
                    candidates=tuple(candidates),
                    workloads={workload.workload_id: workload},
                    protocol=Protocol(),
                )
            )


def faulty_copy(path: Path, rng: random.Random, folder: Path) -> Path:
    """A copy of an exported file with a fault: in its bytes, in a value, or in the footer."""
    made = folder / "faulty.parquet"
    kind = rng.randrange(3)
    if kind == 0:
        made.write_bytes(damaged(rng, path.read_bytes()))
    else:
        (faulty_values if kind == 1 else faulty_footer)(path, made, rng)
    return made


def export_case(work: Work) -> None:
    """`fleet export` in every other format."""
    reader = Store.read(work.store)
    for form in ("ansor", "autotvm", "meta_schedule"):
        try:
            export(reader, work.folder / f"export-{form}", form, [DEVICE])
        except TYPED as refusal:
            work.refusals.setdefault("export", str(refusal))


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

    files = [str(work.logs / name.decode()) for name, _ in work.case.files]
    question = {"op": "workloads", "networks": files, "family": Family.CPU}
    try:
        answer = ask(question, timeout_secs=_READER_SECS)
    except NetworkRefusedError as error:
        raise AssertionError(f"the process did not answer for each file: {error}") from error
    assert set(files) == {*answer["workloads"], *answer["refused"]}
    assert all(reason.isprintable() for reason in answer["refused"].values()), answer["refused"]


def open_dataset_case(work: Work) -> None:
    """`fleet datasets open` into a store of ours, then scripts, pages, exports and training data of it."""
    from fleet.datasets.admission import open_dataset
    from fleet.models.versions import load_snapshot

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
    spec = DeviceSpec(
        device_id=DeviceId("replayed"),
        kind=DeviceKind.REPLAY,
        family=Family.CPU,
        target_json="{}",
        replay=Replay(records=str(work.logs / RECORDS), device=DeviceId("board"), noise=True, failures=True),
    )
    replay_all(ready({spec.device_id: spec}, work.folder / "replay")[spec.device_id])


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


def counts_of(work: Work) -> dict[str, int]:
    """What became of a case's lines."""
    case = work.case
    return {"files": len(case.files), "made_lines": case.lines, "markers": case.markers, **work.counts}
