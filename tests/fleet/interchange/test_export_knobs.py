from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from fleet.errors import FleetError
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.knob_fixtures import (
    FAILURES,
    NAMES,
    cache_text,
    cached,
    failed,
    helion_row,
    triton_text,
    write_helion,
)
from tests.log_fixtures import ansor, records, run, run_lines, write_log
from tests.record_fixtures import make_record, make_workload


def kernel_tuner_logs(folder: Path) -> None:
    bad = [failed(100 + place, word) for place, word in enumerate(FAILURES)]
    good = [cached(number, benchmark_time=100.1 + number / 3) for number in range(60)]
    (folder / "A100.json").write_text(cache_text([*good, *bad]))
    other = [cached(number, time=1.5, times=[1.5]) for number in range(3)]
    (folder / "small.json").write_text(cache_text(other, problem_size=[64, 64]))


def triton_logs(folder: Path) -> None:
    times: list[Any] = [[0.1 + place / 7, 0.1, 0.9] for place in range(5)]
    (folder / "matmul.autotune.json").write_text(triton_text([*times, [float("inf")] * 3]))


def helion_logs(folder: Path) -> None:
    rows = [
        helion_row("ok", "0.125", "Config(block_sizes=[32, 16], pid_type='flat', x=None, y=True)"),
        helion_row("ok", "0.0625", "Config(block_sizes=[64, 16])"),
        helion_row("error", "", "Config(block_sizes=[128, 16])"),
        helion_row("timeout", "", "Config(block_sizes=[256, 16])"),
    ]
    write_helion(folder, rows)


CASES = {"kernel_tuner": (kernel_tuner_logs, 66), "triton": (triton_logs, 6), "helion": (helion_logs, 4)}


def imported(folder: Path, tool: str) -> Path:
    logs = folder / "logs"
    logs.mkdir()
    make, count = CASES[tool]
    make(logs)
    assert run(folder, logs).imported == count
    return folder / "store"


def check_kernel_tuner(files: tuple[Path, ...]) -> None:
    """Kernel Tuner reads the best of each problem."""
    caches = [path for path in files if not path.name.endswith(".results.json")]
    assert len(caches) == 2
    for path in caches:
        text = path.read_text()
        assert text.endswith("}\n}")  # Kernel Tuner takes this for closed
        cache = json.loads(text)
        assert cache["tune_params_keys"] == list(cache["tune_params"]) == NAMES
        assert all(key == ",".join(str(one[name]) for name in NAMES) for key, one in cache["cache"].items())
        best = json.loads(path.with_name(f"{path.stem}.results.json").read_text())["data"]
        times = [one["time"] for one in cache["cache"].values() if not isinstance(one["time"], str)]
        assert [one["problem_size"] for one in best] == ["x".join(map(str, cache["problem_size"]))]
        assert best[0]["time"] <= min(times)
        assert best[0]["device_name"] == "NVIDIA_A100_PCIE_40GB"


def check_triton(files: tuple[Path, ...]) -> None:
    """Triton reads the best."""
    (path,) = files
    config, times = min(json.loads(path.read_text())["configs_timings"], key=lambda pair: pair[1])
    assert times == [0.1] * 3
    names = {"kwargs", "num_warps", "num_ctas", "num_stages", "maxnreg", "pre_hook", "ir_override"}
    assert set(config) == names


def check_helion(files: tuple[Path, ...]) -> None:
    """Helion reads the best."""
    best = next(path for path in files if path.name.endswith(".best.json"))
    assert json.loads(best.read_text()) == {"block_sizes": [64, 16]}


CHECKS = {"kernel_tuner": check_kernel_tuner, "triton": check_triton, "helion": check_helion}


@pytest.mark.parametrize("tool", CASES)
@pytest.mark.parametrize("form", ["own", "t4"])
def test_exported_files_give_equal_records(tmp_path: Path, tool: str, form: str) -> None:
    store = imported(tmp_path, tool)
    result = export(Store.read(store), tmp_path / "out", tool if form == "own" else form)
    skipped = {"build_timeout (compile_timeout): the format has no word for it": 1}
    assert result.skipped == (skipped if (tool, form) == ("helion", "t4") else {})
    if form == "own":
        CHECKS[tool](result.files)
    (tmp_path / "again").mkdir()
    report = run(tmp_path / "again", tmp_path / "out")
    assert (report.rejected, report.imported) == (0, result.records)
    before = {one.record_id: astuple(one) for one in records(tmp_path)}
    after = {one.record_id: astuple(one) for one in records(tmp_path / "again")}
    assert len(before) - len(after) == sum(result.skipped.values())
    assert {name: before[name] for name in after} == after


def test_records_of_other_tools_are_left_out_with_a_reason(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.json", [ansor(1, target="cuda -arch=sm_80")])
    imported(tmp_path, "triton")
    run(tmp_path, log)
    with pytest.raises(FleetError, match=r"dialect ansor.*measured by triton, not by helion"):
        export(Store.read(tmp_path / "store"), tmp_path / "out", "helion")
    assert not (tmp_path / "out").exists()


def test_name_of_a_stranger_is_no_path(tmp_path: Path) -> None:
    run_lines(tmp_path, cache_text([cached(0)], kernel_name="../../../evil\n"))
    files = export(Store.read(tmp_path / "store"), tmp_path / "out", "kernel_tuner").files
    assert all((tmp_path / "out" / "dev-a") in path.resolve().parents for path in files)


@pytest.mark.parametrize("form", ["kernel_tuner", "t4"])
def test_configurations_of_others_that_are_none_are_left_out_and_counted(tmp_path: Path, form: str) -> None:
    path = imported(tmp_path, "kernel_tuner")
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
    assert result.records == 66
    assert result.skipped == {"its trace cannot be read": 5, "its workload is no kernel of a tuner": 4}
