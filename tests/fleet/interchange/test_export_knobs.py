from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fleet.errors import FleetError
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.knob_fixtures import cache_text, cached
from tests.log_fixtures import ansor, run, run_lines, write_log
from tests.record_fixtures import make_record, make_workload

GOLDEN = Path(__file__).parent / "golden"


def test_records_of_other_tools_are_left_out_with_a_reason(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.json", [ansor(1, target="cuda -arch=sm_80")])
    run(tmp_path, log, GOLDEN / "triton" / "logs")
    with pytest.raises(FleetError, match=r"dialect ansor.*measured by triton, not by helion"):
        export(Store.read(tmp_path / "store"), tmp_path / "out", "helion")
    assert not (tmp_path / "out").exists()


def test_name_of_a_stranger_is_no_path(tmp_path: Path) -> None:
    run_lines(tmp_path, cache_text([cached(0)], kernel_name="../../../evil\n"))
    files = export(Store.read(tmp_path / "store"), tmp_path / "out", "kernel_tuner").files
    assert all((tmp_path / "out" / "dev-a") in path.resolve().parents for path in files)


@pytest.mark.parametrize("form", ["kernel_tuner", "t4"])
def test_configurations_of_others_that_are_none_are_left_out_and_counted(tmp_path: Path, form: str) -> None:
    run(tmp_path, GOLDEN / "kernel_tuner" / "logs")
    path = tmp_path / "store"
    with Store.open(path) as store:
        known = next(iter(store.workloads()))
        modules = ("no JSON", "[]", '{"kernel":5,"tool":"t","problem":1}', "[" * 300 + "]" * 300)
        others = [replace(make_workload(number), module_json=one) for number, one in enumerate(modules)]
        store.put_workloads(others)
        traces = ("no trace", "[1]", '{"a":{}}', "[" * 100_000, '{"a":NaN}')
        made = [make_record(1, workload=known, trace=trace, dialect="knobs") for trace in traces]
        made += [make_record(1, workload=one.workload_id, trace="{}", dialect="knobs") for one in others]
        store.append([replace(one, candidate_id=f"{number:032x}") for number, one in enumerate(made)])
    result = export(Store.read(path), tmp_path / "out", form, ["dev-a"])
    assert result.records == 6
    assert result.skipped == {"its trace cannot be read": 5, "its workload is no kernel of a tuner": 4}
