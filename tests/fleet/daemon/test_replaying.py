"""Replay devices from YAML to a collection: their files, what is made ready, who may be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.device.messages import Batch
from agents.device.replay import ReplayWorker, open_records
from agents.records import (
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Outcome,
    Protocol,
    Record,
    Workload,
)
from benchmarks.harness import drawn
from fleet.config.device_files import parse_device
from fleet.config.settings import load_fleet
from fleet.daemon.device_choice import DeviceChoice
from fleet.daemon.replay_files import delete_older, ready
from fleet.errors import FleetError
from fleet.interchange.export_store import export
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.store.store import Store
from tests.fleet.config.test_config import check_faults
from tests.knob_fixtures import cache_text, cached
from tests.record_fixtures import make_batch, make_descriptor, make_record, make_spec, make_workload
from tests.table_fixtures import rows

YAML: dict[str, Any] = {
    "schema": 1,
    "device_id": "again",
    "kind": "replay",
    "family": "cpu",
    "records": "runs/store",
    "device": "dev-a",
}
WORKLOAD = make_workload(1, (("bert-tiny", 3),))


def replaying(records: Path, **changes: Any) -> dict[DeviceId, DeviceSpec]:
    spec = parse_device({**YAML, "records": str(records), **changes}, "again")
    return {spec.device_id: spec}


def answers(worker: ReplayWorker, workload: Workload) -> list[Record]:
    """What a replay device says of twelve candidates."""
    candidates = tuple(drawn(worker, workload, 12))
    workloads = {workload.workload_id: workload}
    return worker.measure(Batch(candidates=candidates, workloads=workloads, protocol=Protocol()))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a device of two threads."""
    spec = make_spec(target_json='{"kind":"llvm","num-cores":2}', threads=2, cores=(4, 5))
    with Store.open(tmp_path / "store") as made:
        made.put_device(spec, make_descriptor())
        made.put_workloads([WORKLOAD])
        made.append(make_batch(1, 12, workload=WORKLOAD.workload_id))
        made.append([make_record(1, device="ghost")])
    return tmp_path / "store"


#: As `test_config.py` has them.
FAULTS = """
records:                            | records: missing; write the path of a store
records: ""                         | records: missing
records: "a\\0b"                     | is no path
device:                             | device: missing; write the id of the recorded device
device: a/b                         | is no device id
device: again                       | the device's own id
seed: -1                            | seed:
noise: 1                            | noise:
failures: "yes"                     | failures:
kind: local                         | records: is for devices of kind 'replay'
kind: local, records: , device:     | target: missing
target: {mcpu: x}                   | target.kind: missing
tracker: "a:1"                      | tracker: is for devices of kind 'rpc'
"""


def test_a_fault_names_key_and_cure() -> None:
    check_faults(FAULTS, YAML)


def test_a_store_is_exported_once_a_version_and_the_yaml_completed(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    [spec] = ready(replaying(store), folder).values()
    assert (spec.target, spec.threads, spec.cores) == ({"kind": "llvm", "num-cores": 2}, 2, (4, 5))
    [file] = folder.iterdir()
    assert spec.replay.records == str(file)
    made_at = file.stat().st_mtime_ns
    assert ready(replaying(store), folder) == {spec.device_id: spec}
    assert file.stat().st_mtime_ns == made_at
    with Store.open(store) as more:
        more.append([make_record(100, workload=WORKLOAD.workload_id)])
    [newer] = ready(replaying(store), folder).values()
    assert newer.replay != spec.replay
    # The device of before may still answer from its file, and its agent may be started again.
    assert {str(path) for path in folder.iterdir()} == {newer.replay.records, spec.replay.records}
    delete_older([newer, spec], folder)
    assert len(list(folder.iterdir())) == 2
    (folder / "mine-1.parquet").touch()
    delete_older([newer], folder)
    assert {path.name for path in folder.iterdir()} == {Path(newer.replay.records).name, "mine-1.parquet"}
    delete_older([make_spec()], tmp_path / "nowhere")
    # An exported file will do without a store.
    path = tmp_path / "all.parquet"
    export(Store.read(store), path, "parquet")
    [spec] = ready(replaying(path, target={"kind": "llvm", "num-cores": 2}), tmp_path / "others").values()
    assert spec.replay.records == str(path)
    assert not (tmp_path / "others").exists()


#: What a device file says, and words of why it cannot be measured on.
UNFIT = """
records: nowhere                          -> records: .*nowhere does not exist
device: dev-b                             -> records: no device 'dev-b' in .*did you mean 'dev-a'
device: ghost                             -> does not say what device 'ghost' is
family: gpu                               -> family is gpu, but dev-a is a cpu: write family: cpu
target: {kind: llvm, num-cores: 1}        -> target differs from that of dev-a.*leave target out
records: folder                           -> records: there is no store at
records: x.parquet                        -> records: .*is no Parquet file
records: LONG                             -> records: File name too long
"""


@pytest.mark.usefixtures("store")
def test_what_does_not_fit_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.parquet").write_text("x")
    for changes, words in rows(UNFIT):
        asked = {"records": "store", **yaml.safe_load(f"{{{changes}}}")}
        asked["records"] = tmp_path / asked["records"].replace("LONG", "x" * 300)
        with pytest.raises(FleetError, match=f"^device again: .*{words}") as caught:
            ready(replaying(**asked), tmp_path / "r")
        assert "\n" not in str(caught.value)


def test_a_device_known_from_logs_only_cannot_be_asked_and_other_kinds_stay_as_they_are() -> None:
    local, spec = make_spec(), make_spec(kind=DeviceKind.REPLAY)
    with pytest.raises(FleetError, match="cannot be asked for new ones"):
        ready({spec.device_id: spec}, Path("r"))
    assert ready({local.device_id: local}, Path("r")) == {local.device_id: local}


def test_replay_devices_are_measured_on_only_when_they_are_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hardware"
    folder.mkdir()
    (folder / "again.yaml").write_text(json.dumps({**YAML, "records": str(store)}))
    monkeypatch.chdir(tmp_path)

    def fitting(**devices: Any) -> dict[DeviceId, DeviceSpec]:
        changes = {"devices.folder": str(folder), "store.path": str(tmp_path / "new" / "store")}
        changes |= {f"devices.{key}": value for key, value in devices.items()}
        return dict(DeviceChoice(load_fleet(None, changes, {}).config).files.specs)

    with pytest.raises(FleetError, match="or name a replay device with --device"):
        fitting()
    [spec] = fitting(ids=("again",)).values()
    assert Path(spec.replay.records).parent == tmp_path / "new" / "replay"


def test_gpu_that_only_another_tuner_has_measured_answers(tmp_path: Path) -> None:
    """A cache of Kernel Tuner, imported: a device without a GPU, its failures included."""
    failed = cached(3, time="RuntimeFailedConfig")
    del failed["times"]
    (tmp_path / "A100.json").write_text(cache_text([cached(0), cached(1), cached(2), failed]))
    with Store.open(tmp_path / "store") as store:
        import_logs(store, ImportRequest(paths=(tmp_path / "A100.json",), device_id="dev-a"))
    specs = replaying(tmp_path / "store", family="gpu", failures=True)
    [spec] = ready(specs, tmp_path / "replay").values()
    worker = ReplayWorker(spec, open_records(spec))
    (workload,) = worker.network_workloads(["bert-tiny"])
    answered = {json.loads(one.trace)["block_size_x"]: one for one in answers(worker, workload)}
    ran = dict.fromkeys((16, 32, 64), Outcome.OK)
    assert {size: one.outcome for size, one in answered.items()} == {**ran, 128: Outcome.RUN_FAILED}
    assert answered[16].run_secs == tuple(one / 1e3 for one in cached(0)["times"])
    assert dict(worker.descriptor.cuda_devices[0])["compute_units"] == "108"
    assert json.loads(answered[128].environment)["device_name"] == "NVIDIA A100-PCIE-40GB"
