"""What tuning a network leaves: a database that only gets better, a checked library, a report."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from msgspec.structs import replace

from agents.host.cuda import cuda_devices
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.records import (
    REPEATS,
    CandidateId,
    DeviceId,
    DeviceKind,
    Family,
    Outcome,
    Record,
    WorkloadId,
    canonical_json,
)
from fleet.cli.app import run
from fleet.config.sections import FleetConfig
from fleet.errors import FleetError
from fleet.models.registry import Registry
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from fleet.tuning.database import read_database, update_database
from fleet.tuning.delivery import (
    build_library,
    check_all,
    check_network,
    choose_library,
    deliver,
    file_name,
    time_network,
    why_not_here,
)
from fleet.tuning.report import headline, render
from fleet.tuning.search import settled
from fleet.tuning.tuning import TuneOptions, tune_device
from tests.disk_fixtures import contents
from tests.host_fixtures import write_generic_device
from tests.network_fixtures import save_network, save_program
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.scenario_fixtures import check_facts

TARGET = {"kind": "llvm", "num-cores": 1}


def ok(number: int, secs: float, workload: int = 1) -> Record:
    return make_record(
        number,
        device="mine",
        workload=make_workload(workload).workload_id,
        trace=f'[[["Sample{number}"]],[]]',
        outcome=Outcome.OK,
        run_secs=(secs,),
        error="",
    )


def place(workload: int) -> WorkloadId:
    """The id of a workload as a database names it: a whole number of 64 bits."""
    return WorkloadId(f"{int(make_workload(workload).workload_id, 16):016x}")


def timed(secs: dict[str, float], differences: dict[str, float | None]) -> dict[str, Any]:
    """What the process that times a network answers."""
    return {
        "secs": secs,
        "differences": differences,
        "reference": "torch_eager",
        "precision": "float32",
        "tolerance": 1e-4,
        "inputs": [["x", [1], "float32"]],
        "turns": {side: [one] for side, one in secs.items()},
        "absent": {},
        "threads": 1,
    }


def test_the_fastest_library_with_the_right_output_is_kept() -> None:
    sides = {"torch_eager": 1.0, "tvm_untuned": 9.0, "tvm_tuned": 2.0}
    right = {"tvm_untuned": 1e-6, "tvm_tuned": 1e-6}
    assert choose_library(timed(sides, right), 1e-4) == "tvm_tuned"
    assert choose_library(timed(sides | {"tvm_tuned": 10.0}, right), 1e-4) == "tvm_untuned", "never worse"
    earlier = timed(sides | {"tvm_earlier": 1.5}, right | {"tvm_earlier": 0.0})
    assert choose_library(earlier, 1e-4) == "tvm_earlier", "what an earlier search found stays"
    assert choose_library(timed(sides, right | {"tvm_tuned": 1e-2}), 1e-4) == "tvm_untuned"
    assert choose_library(timed(sides, dict.fromkeys(right)), 1e-4) is None


def test_each_network_is_checked_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = NetworkRefusedError("network b.pt2: is no function of its inputs")
    ask = Mock(side_effect=[{}, refusal])
    monkeypatch.setattr("fleet.tuning.delivery.ask", ask)
    device = store_with(tmp_path / "store", []).devices()[DeviceId("mine")]
    with pytest.raises(NetworkRefusedError, match=r"b\.pt2: is no function"):
        check_all(["bert-tiny", "a.pt2", "b.pt2", "c.pt2"], device, tmp_path)
    asked = [call.args[0] for call in ask.call_args_list]
    assert [(question["op"], question["network"]) for question in asked] == [
        ("first_run", "a.pt2"),
        ("first_run", "b.pt2"),
    ]
    # The engine of a search that is refused so is asked for no candidate, and for no measurement.
    ask.side_effect = refusal
    settings = FleetConfig.model_validate({"workloads": {"networks": ("b.pt2",)}})
    engine = Mock(spec=["store"], store=lambda: Store.read(tmp_path / "store"))
    options = TuneOptions(trials=8, models=tmp_path, out=tmp_path)
    monkeypatch.setattr("fleet.tuning.tuning.labels_of", lambda networks: {text: text for text in networks})
    with pytest.raises(NetworkRefusedError, match=r"b\.pt2: is no function"):
        tune_device(engine, settings, device.spec, options, MagicMock())


def test_a_library_is_made_where_the_device_is() -> None:
    import socket

    assert why_not_here(make_spec(), socket.gethostname()) == ""
    assert "on host far" in why_not_here(make_spec(), "far")
    assert "of kind rpc" in why_not_here(make_spec(kind=DeviceKind.RPC), None)
    assert file_name(read_network_name("transformers:bert,batch=2")) == "transformers-bert-batch-2"
    assert file_name(read_network_name("/nets/mine.pt2")) == "mine"


def store_with(folder: Path, records: list[Record]) -> StoreReader:
    store = Store.open(folder)
    store.put_workloads([make_workload(1), make_workload(2)])
    store.put_device(make_spec("mine", target_json=canonical_json(TARGET)), make_descriptor())
    store.append(records)
    store.close()
    return Store.read(folder)


def bests(folder: Path) -> list[float]:
    found = read_database(folder, canonical_json(TARGET))
    return sorted(one.mean_secs for schedules in found.schedules.values() for one in schedules)


@pytest.fixture
def any_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces need not be readable."""
    monkeypatch.setattr("fleet.tuning.database.read_trace", lambda _: None)
    monkeypatch.setattr("fleet.interchange.export_parquet.replay_fault", lambda *_: "")


@pytest.mark.usefixtures("any_trace")
def test_a_second_search_keeps_what_was_better(tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    lucky = [replace(ok(6, secs), attempt=attempt) for attempt, secs in enumerate((1e-4, 4e-2, 3e-2))]
    records = [ok(1, 1e-3), ok(2, 2e-3), ok(3, 5e-3, workload=2), *lucky]
    first = store_with(tmp_path / "first", records)
    found = update_database(first, DeviceId("mine"), out)
    assert contents(out).keys() == {"database_tuning_record.json", "database_workload.json"}
    assert bests(out) == [1e-3, 2e-3, 5e-3, 3e-2], "of several timings luck does not count"
    # Another store knows slower ones of the first workload, and a faster one of the second.
    other = store_with(tmp_path / "other", [ok(4, 4e-3, workload=2), ok(5, 3e-3)])
    again = update_database(other, DeviceId("mine"), out)
    assert bests(out) == [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 3e-2]
    one, two = place(1), place(2)
    assert again.traces()[one] == found.traces()[one] == [canonical_json([[["Sample1"]], []])], (
        "far slower ones are left out"
    )
    assert again.traces()[two] == [canonical_json([[["Sample4"]], []]), canonical_json([[["Sample3"]], []])]
    assert list(again.lines) == list(found.lines), "lines keep their numbers"
    before = contents(out)
    update_database(other, DeviceId("mine"), out)
    assert contents(out) == before
    (out / "database_tuning_record.json").write_text('[0,[[[],[]],[1.0],{"kind":"llvm"},[]]]\n')
    with pytest.raises(FleetError, match="holds the database of another target"):
        update_database(other, DeviceId("mine"), out)
    # A search says so before it asks its engine for anything.
    options = TuneOptions(trials=8, models=tmp_path, out=out)
    with pytest.raises(FleetError, match="holds the database of another target"):
        tune_device(Mock(spec=[]), FleetConfig(), other.devices()[DeviceId("mine")].spec, options, Mock())
    (out / "database_tuning_record.json").write_text("[7,[[[],[]],[1.0]")
    with pytest.raises(FleetError, match="cannot be read"):
        update_database(other, DeviceId("mine"), out)


#: What else the process of a network may answer.
ANSWERS = """
{"secs": {}}
{"secs": []}
{"secs": {"tvm_tuned": "soon", "tvm_untuned": 1.0}}
{"secs": {"tvm_tuned": 0.0, "tvm_untuned": 1.0}}
{"turns": {}}
{"turns": {"torch_eager": [], "tvm_untuned": [9.0], "tvm_tuned": [3.0]}}
{"differences": {}}
{"reference": "the file itself"}
{"inputs": [["x", [1]]]}
{"threads": null}
"""


@pytest.mark.parametrize("changes", [json.loads(line) for line in ANSWERS.strip().splitlines()])
def test_another_answer_than_was_asked_for_is_refused(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secs = {"torch_eager": 2.0, "tvm_untuned": 9.0, "tvm_tuned": 3.0}
    sound = timed(secs, {"tvm_untuned": None, "tvm_tuned": 1e-7, "stranger": 1.0}) | {"library": "x"}
    libraries = {"tvm_untuned": tmp_path / "a.so", "tvm_tuned": tmp_path / "b.so"}
    answers = [sound, sound | changes, {"workloads": 5, "applied": 4, "refused": [], "why_not": "x"}]
    monkeypatch.setattr("fleet.tuning.delivery.ask", lambda *_, **__: answers.pop(0))
    found = time_network("small.pt2", make_spec("mine"), libraries, tmp_path)
    assert (found["secs"], found["differences"]) == (secs, {"tvm_untuned": None, "tvm_tuned": 1e-7})
    assert "library" not in found
    for ask, argument in ((time_network, libraries), (build_library, {})):
        with pytest.raises(NetworkRefusedError, match=r"small\.pt2: its process gave another answer"):
            ask("small.pt2", make_spec("mine"), argument, tmp_path)


@pytest.mark.gpu
def test_a_library_for_a_gpu_gives_what_torch_gives(tmp_path: Path) -> None:
    if not (devices := cuda_devices()):
        pytest.skip("this host has no CUDA device")
    network = save_network(tmp_path / "small.pt2")
    target = {"kind": "cuda", "arch": devices[0]["arch"], "max_threads_per_block": 1024}
    target |= {"max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    spec = make_spec("mine", kind=DeviceKind.CUDA, family=Family.GPU, target_json=canonical_json(target))
    check_network(str(network), spec, tmp_path)
    found = deliver(str(network), spec, {}, tmp_path, tmp_path / "untuned.so")
    assert found["is_equal"]
    assert found["reference"] == "torch_eager"
    assert found["differences"].keys() >= {"tvm_untuned", "tvm_tuned"}
    assert Path(found["library"]).exists()


@pytest.mark.parametrize("lead", ["secret", "nothing"])
def test_links_of_a_process_that_a_network_took_over_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lead: str
) -> None:
    secret, precious = tmp_path / "secret", tmp_path / "precious"
    secret.write_text("secret")
    precious.write_text("precious")

    def ask(question: dict[str, Any], *, folder: Path, **_: Any) -> dict[str, Any]:
        if question["op"] == "build":
            (folder / "earlier.so").symlink_to(precious)
            (folder / "tuned.so").symlink_to(tmp_path / lead)
            return {"workloads": 1, "applied": 1, "refused": {}, "ways": 1, "changed": 0}
        sides = ["torch_eager", *question["libraries"]]
        assert Path(question["libraries"]["tvm_earlier"]).read_text() == "found earlier"
        return timed(dict.fromkeys(sides, 1e-3) | {"tvm_tuned": 1e-4}, dict.fromkeys(sides[1:], 1e-07))

    monkeypatch.setattr("fleet.tuning.delivery.ask", ask)
    out = tmp_path / "tuned"
    out.mkdir()
    (out / "small.so").write_text("found earlier")
    with pytest.raises(NetworkRefusedError, match=r"left no library tuned\.so"):
        deliver("/nets/small.pt2", make_spec("mine"), {}, out, tmp_path / "untuned.so")
    assert precious.read_text() == "precious", "nothing is written through a link"
    assert (out / "small.so").read_text() == "found earlier"


def told(name: str, best: float | None, trials: int, curve: list[list[float | None]]) -> dict[str, Any]:
    """What a search tells of a workload."""
    return {
        **{"name": name, "weight": 2, "flops": 1e6, "before_secs": None, "best_secs": best},
        **{"gflops_per_s": best and 1e-3 / best, "trials": trials, "failed": 1, "curve": curve},
        "untuned_secs": best and 40 * best,
    }


def result() -> dict[str, Any]:
    sides = {"torch_eager": 2e-3, "tvm_untuned": 9e-3, "tvm_tuned": 3e-3}
    return {
        "device": "mine",
        "model": None,
        "why_no_model": "no model serves mine yet",
        "trials": 20,
        "failed": 1,
        "networks": {"net": {"best_secs": 2e-3, "curve": [[30.0, 4e-3], [90.0, 2e-3]]}},
        "workloads": [
            told("conv2d_<b>_1x2", 1e-3, 20, [[16, 2e-3], [20, 1e-3]]),
            told("never ran", None, 0, [[4, None]]),
        ],
        "whole_networks": {
            "net": {
                **timed(sides, {"tvm_untuned": 1e-7, "tvm_tuned": 2e-7}),
                "turns": {side: [2e-3, 9e-3] for side in sides},
                "absent": {"torch_compile": "there is no C++ compiler"},
                **{"workloads": 5, "applied": 4, "library": "/tmp/net.so", "kept": "tvm_tuned"},
                "speedup_vs_untuned": 3.0,
            },
            "far": {"why_not": "the device is on host far"},
        },
        "seconds": {"measure": 10.0},
        "database": "runs/tuned/mine",
    }


def test_the_report_says_who_wins() -> None:
    found = result()
    said = headline(found)
    assert said[1] == (
        "net: 3.000 ms per run, torch eager is faster (2.000 ms); "
        "3.00 times as fast as TVM without schedules."
    )
    assert said[2] == "far: no library (the device is on host far)."
    page = render({"version": 1, **found, "created_at": 0.0, "command": "fleet tune mine", "headline": said})
    assert "conv2d_&lt;b&gt;_1x2" in page
    for text in (
        *("torch.compile", "there is no C++ compiler", "1970-01-01", "4 of 5 tensor programs"),
        "40.0\N{MULTIPLICATION SIGN}",
        "fleet tune 3\N{NO-BREAK SPACE}ms</text>",
        "torch eager 2\N{NO-BREAK SPACE}ms</text>",
    ):
        assert text in page
    assert "http" not in page, "it loads nothing"


def save_smaller_network(path: Path) -> None:
    """Export a network of few programs, one of them a convolution: each takes a while to compile."""
    import torch

    layers = (torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten())
    save_program(torch.nn.Sequential(*layers, torch.nn.Linear(16 * 64, 10)), (torch.randn(1, 3, 8, 8),), path)


#: What is so of a library; there are ways with weights in order and without, and with other schedules.
LIBRARY = """
is_equal = true
reference = torch_eager
applied >= 1
refused = {}
ways > 1
changed >= 0
secs.torch_eager > 0
kept ~ tvm_(un)?tuned
"""


@pytest.mark.tvm
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_network_from_a_file_becomes_a_library_with_torch_s_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import tvm

    monkeypatch.chdir(tmp_path)
    write_generic_device(Path("hardware"))
    save_smaller_network(Path("small.pt2"))
    where = ["--store", "store", "--out", "tuned", "--set", "devices.folder=hardware", "--json"]
    # torch compiles in most of a minute, and is timed in any case as it comes.
    where += ["--set", "tuning.rivals=[]"]
    quick = ["--set", "protocol.repeat=2", "--set", "protocol.min_repeat_ms=1", "--set", "protocol.visits=1"]
    monkeypatch.setattr("fleet.tuning.delivery._TURN_SECS", 0.02)
    assert run(["tune", "generic", "small.pt2", "--trials", "6", *where, *quick]) == 0
    found = json.loads(capfd.readouterr().out)
    # Nothing was ever trained here: the shipped model ranks.
    check_facts(found, "model = v000001\nended = trials")
    assert Registry(tmp_path / "runs/models").manifest("v000001")["samples"] == 0
    check_records(tmp_path / "store", found, 6)
    # Too few for first rounds of 8: every program of the network has its share.
    assert [each["before_secs"] for each in found["workloads"]] == [None] * 4
    assert all(each["curve"][0][0] in (1, 2) for each in found["workloads"])
    [(label, one)] = found["whole_networks"].items()
    assert label == read_network_name("small.pt2").label()
    check_facts(one, LIBRARY)
    assert one["changed"] <= one["applied"]
    assert one["secs"][one["kept"]] <= one["secs"]["tvm_untuned"]
    assert statistics.median(one["turns"]["tvm_tuned"]) == one["secs"]["tvm_tuned"]
    assert Path(one["library"]) == tmp_path / "tuned/small.so"
    if one["kept"] == "tvm_tuned":
        text = tvm.runtime.load_module(one["library"])["as_text"]()
        # If weights were put in another order, the compiler did it: nothing does it when the network runs.
        assert "_weight_prepack" not in text
    assert json.loads(Path("tuned/report.json").read_text())["whole_networks"] == found["whole_networks"]
    assert "torch eager" in Path("tuned/report.html").read_text()
    database = read_database(tmp_path / "tuned", canonical_json(TARGET)).traces()
    assert len(database) >= one["applied"]

    earlier = {record.candidate_id for record in Store.read(tmp_path / "store").records()}

    # A second search goes on from the best known, here without a head, and loses nothing.
    headless = ["--set", "onboarding.shipped=false", "--models", "none"]
    assert run(["tune", "generic", "small.pt2", "--trials", "3", *where, *quick, *headless]) == 0
    again = json.loads(capfd.readouterr().out)
    check_facts(again, "model = null\nwhy_no_model has no model serves generic\ntrials = 3")
    # Both candidates of a program may have failed in the first search.
    for each in (each for each in again["workloads"] if each["before_secs"]):
        assert each["best_secs"] <= each["before_secs"]
    check_records(tmp_path / "store", again, 9)
    # A leader of the first search may have been timed again: both figures are of all its records.
    told = [each["before_secs"] for each in again["workloads"] if each["before_secs"]]
    assert sorted(told) == best_latencies(tmp_path / "store", among=earlier)
    assert "tvm_earlier" in again["whole_networks"][label]["secs"]
    kept = read_database(tmp_path / "tuned", canonical_json(TARGET))
    assert database.keys() <= kept.traces().keys()


def check_records(store: Path, found: dict[str, Any], trials: int) -> None:
    """Every candidate was planned once, and the best latency of each workload is one of its records."""
    records = list(Store.read(store).records())
    # A canary that takes long has leaders measured again, on top of what confirms them.
    planned = [record for record in records if record.origin not in REPEATS]
    assert len(planned) == len({record.candidate_id for record in planned}) == trials
    told = [one["best_secs"] for one in found["workloads"] if one["best_secs"]]
    assert sorted(told) == best_latencies(store, among={record.candidate_id for record in records})


def best_latencies(store: Path, among: set[CandidateId]) -> list[float]:
    """The least latency that the store has of each workload, by these candidates alone."""
    told: dict[str, dict[str, list[float]]] = {}
    for record in Store.read(store).records():
        if record.outcome is Outcome.OK and record.candidate_id in among:
            of = told.setdefault(record.workload_id, {})
            of.setdefault(record.candidate_id, []).append(record.latency_secs)
    # Of a front-runner that a restless host had measured again and again, the median counts.
    return sorted(min(settled(sorted(secs)) for secs in of.values()) for of in told.values())
