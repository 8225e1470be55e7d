"""What `import fleet` offers: light to import, typed, and the same numbers as the store's own reader."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest

import fleet
from fleet.models.registry import Registry
from fleet.store.store import Store
from tests.conftest import run_code
from tests.record_fixtures import make_batch, make_descriptor, make_spec, make_workload
from tests.refresh_fixtures import candidates_of, make_store, small_model, some_workloads

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "store"
    with Store.open(path) as made:
        for device_id in ("dev-a", "dev-b"):
            made.put_device(make_spec(device_id), make_descriptor())
            made.append(make_batch(0, 20, device_id=device_id))
        made.put_workloads([make_workload(1)], own=True)
    return path


def test_records_are_those_of_the_store(store: Path) -> None:
    view = fleet.open_store(store)
    table = view.records(counting=False)
    truth = {record.record_id: record for record in Store.read(store).records()}
    assert len(view) == table.num_rows == len(truth) == 40
    for row in table.to_pylist():
        record = truth[row["record_id"]]
        assert (row["device_id"], row["candidate_id"]) == (record.device_id, record.candidate_id)
        assert row["run_secs"] == list(record.run_secs)
    assert set(view.devices) == {"dev-a", "dev-b"}
    assert view.records().num_rows == sum(table.column("counts").to_pylist())


def test_it_shows_one_version_while_others_write(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as made:
        made.put_device(make_spec("dev-a"), make_descriptor())
        made.append(make_batch(0, 5))
        view = fleet.open_store(tmp_path / "store")
        made.append(make_batch(5, 5))
    assert (len(view), view.records(counting=False).num_rows) == (5, 5)
    assert len(fleet.open_store(tmp_path / "store")) == 10


def test_wrong_names_are_one_clear_error(store: Path, tmp_path: Path) -> None:
    view = fleet.open_store(store)
    with pytest.raises(fleet.StoreError, match=r"device .dev-x. has no records.*dev-a, dev-b"):
        view.records(devices=["dev-x"])
    with pytest.raises(fleet.StoreError, match="no column 'speed'"):
        view.records(columns=["speed"])
    with pytest.raises(ValueError, match="fine"):
        view.records(outcomes=["fine"])
    with pytest.raises(fleet.StoreError, match="none"):
        fleet.open_store(tmp_path / "none")
    with pytest.raises(AttributeError, match="it offers"):
        _ = fleet.nothing


def test_a_data_frame_whose_package_is_missing_is_one_clear_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = fleet.open_store(store)
    for form in ("polars", "pandas"):
        monkeypatch.setitem(sys.modules, form, None)
        with pytest.raises(fleet.FleetError, match=f"{form} is not installed; `pip install {form}`"):
            view.records(form=form)
    with pytest.raises(ValueError, match="no form 'excel'"):
        view.records(form="excel")


def test_a_version_scores_for_each_of_its_heads(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.publish(registry.add(small_model("box.a", "box.b"), {}), {"box.a": {}, "box.b": {}})
    [workload] = some_workloads(1, 0)
    traces = [one.trace for one in candidates_of(workload, 4)]
    model = fleet.load_model("v000001", tmp_path)
    assert (model.devices, model.device_id) == (("box.a", "box.b"), None)
    served = fleet.load_model("box.b", tmp_path)
    assert model.score(workload, traces, device="box.b") == served.score(workload, traces)
    assert model.score(workload, traces, device="box.a") != served.score(workload, traces)
    with pytest.raises(
        fleet.FleetError, match=r"no head for device None; device= may be one of box.a, box.b"
    ):
        model.score(workload, traces)


def test_the_examples_of_the_documents_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(Path("runs/store"), some_workloads(2, 0))
    registry = Registry(Path("runs/models"))
    registry.publish(registry.add(small_model("box.a", "box.b"), {}), {"box.a": {}, "box.b": {}})
    page = ROOT / "docs/python.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (failed, tried) == (0, 31)


def test_every_name_is_documented() -> None:
    page = (ROOT / "docs/python.md").read_text()
    assert [name for name in fleet.__all__ if name not in page] == []
    assert [name for name in fleet.__all__ if not getattr(fleet, name).__doc__] == []


def test_importing_it_is_light() -> None:
    heavy = "{'torch', 'tvm', 'ray', 'pyarrow', 'pydantic', 'numpy'}"
    code = f"import sys, fleet; print(sorted({heavy} & set(sys.modules)), 'open_store' in dir(fleet))"
    assert run_code(code) == "[] True\n"
