"""`fleet show`, `workloads` and `datasets`, the families of `fleet train`, and what a collection brought."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.networks.corpus import CORPUS
from agents.records import Candidate, DeviceKind, Family, Record, Workload
from benchmarks.hostile_corpus import attack_steps
from fleet.cli.collected import collected, print_collected
from fleet.store.store import Store
from tests.cli_fixtures import json_of, refusal, said
from tests.cli_fixtures import run as invoke
from tests.record_fixtures import make_descriptor, make_spec, make_workload
from tests.record_fixtures import make_record as any_record
from tests.table_fixtures import rows

GPU = replace(make_spec("gpu-a"), family=Family.GPU)


def make_record(number: int, *, step: list[Any] | None = None, **changes: Any) -> Record:
    """A record of the one workload, of a trace that MetaSchedule might write or of another first step."""
    sampled = ["SampleCategorical", [], [[number], [1.0]], ["v0"]]
    workload_id = make_workload(1).workload_id
    candidate = Candidate(workload_id=workload_id, trace=json.dumps([[step or sampled], []]))
    changes = {"trace": candidate.trace, "candidate_id": candidate.candidate_id, **changes}
    return any_record(number, workload=workload_id, **changes)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPUs, a GPU, and a CPU without records; in the usual place of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    path = Path("runs/store")
    with Store.open(path) as made:
        for spec in (make_spec("dev-a"), make_spec("dev-b"), GPU, make_spec("dev-c")):
            made.put_device(spec, make_descriptor())
        made.put_workloads([make_workload(1)], own=True)
        made.append(
            [
                *(make_record(number, measured_at=100.0) for number in (1, 2)),
                *(make_record(number, device="dev-b", measured_at=100.0) for number in (1, 2)),
                *(make_record(number, device="gpu-a", measured_at=100.0) for number in (1, 2)),
                make_record(
                    3, measured_at=200.0, quality='{"clean":1,"disturbed":{"slow_core":3},"suspect":true}'
                ),
                make_record(1, measured_at=200.0, origin="noise", attempt=1),
            ]
        )
    return path


def test_show_finds_a_candidate_and_its_script_holds_all_of_it() -> None:
    record = make_record(1)
    found = json_of("show", record.candidate_id)
    assert (found["kind"], found["trace"]) == ("candidate", record.trace)
    assert sorted(one["device_id"] for one in found["records"]) == ["dev-a", "dev-a", "dev-b", "gpu-a"]
    text = invoke("show", record.candidate_id, "--script").stdout
    values = {}
    # What stands above the imports of TVM is data.
    exec(text[text.index("TARGET =") : text.index("schedule =")], values)
    assert values["TRACE"] == record.trace
    assert values["MODULE"] == make_workload(1).module_json
    assert json.loads(str(values["TARGET"])) == make_spec("dev-a").target
    compile(text, "script", "exec")


def test_nothing_of_strangers_becomes_a_script(store: Path) -> None:
    """Of a log, a foreign workload, a dataset, or of a trace that calls the C library and was measured."""
    foreign, strange = make_record(9, origin="imported"), make_workload(2)
    record = replace(make_record(10), workload_id=strange.workload_id)
    published = make_record(11, device="lab.dev-a")
    calling = make_record(12, step=attack_steps(0, "/m")[1])
    with Store.open(store) as made:
        made.put_workloads([strange])
        made.put_workloads([make_workload(1)])
        made.put_device(make_spec("lab.dev-a", kind=DeviceKind.REPLAY), make_descriptor())
        made.append([foreign, record, published, calling])
    for name, why in (
        (foreign.record_id, "programs of others are never executed as they came"),
        (strange.workload_id, "has no schedule"),
        (record.candidate_id, "modules of others are not run"),
        (published.candidate_id, "no live device of this store has measured it"),
        (calling.candidate_id, "TVM is not to see its trace: an index map is no integer arithmetic"),
    ):
        assert why in refusal("show", name, "--script")
        if name != strange.workload_id:
            assert json_of("show", name)["records"], "the text itself may be read"
    # A candidate of a dataset that a device of ours drew too is ours.
    with Store.open(store) as made:
        made.append([make_record(1, device="lab.dev-a", attempt=7)])
    assert "TRACE = " in said("show", make_record(1).candidate_id, "--script")


def test_workloads_of_networks_are_filtered_and_counted_without_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [
        replace(
            make_workload(number, (("net-a" if number % 2 else "net-b", 1),)), operator=operator, flops=flops
        )
        for number, (operator, flops) in enumerate(
            [("dense", 1e6), ("dense", 2e6), ("dense", 3e6), ("conv2d", 1e6), ("conv2d", 1e9), ("norm", 1e4)]
        )
    ]
    asked = []

    def read(texts: list[str], family: Family, *, optional: set[str]) -> list[Workload]:
        asked.append((texts, optional))
        return made

    monkeypatch.setattr("agents.networks.reader.network_workloads", read)

    def listed(*options: str) -> list[str]:
        found = json_of("workloads", *options, "--network", "corpus", "--network", "bert-tiny")
        return sorted(f"{one['operator']} {one['flops']:g}" for one in found)

    assert len(listed()) == 6
    assert asked == [([*CORPUS, "bert-tiny"], set(CORPUS))], "no member of the set may end the listing"
    for options, shown in rows("""
        --operator conv2d --operator norm  -> conv2d 1e+06, conv2d 1e+09, norm 10000
        --min-flops 1e6 --max-flops 2e6    -> conv2d 1e+06, dense 1e+06, dense 2e+06
        NORM                               -> norm 10000
        net-b                              -> conv2d 1e+09, dense 1e+06, dense 3e+06
    """):
        assert listed(*options.split()) == shown.split(", ")
    chosen = listed("--max-flops", "1e7", "--count", "3")
    assert [one.split()[0] for one in chosen] == ["conv2d", "dense", "norm"]
    text = said("workloads", "--network", "corpus")
    assert "6 workloads in corpus, 3 operators" in text
    assert re.search(r"conv2d +2 +2 +1 to 1e\+03", text)
    assert "unknown network 'no-such'" in str(invoke("workloads", "--network", "no-such").exception)


def test_a_collection_explains_its_records_and_says_what_disturbs(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = collected(store, 150.0)
    assert found == {
        **{"records": 2, "suspect": 1, "candidates": 1, "extra": {"noise": 1}},
        "reasons": {"slow_core": 3},
    }
    monkeypatch.setattr("fleet.cli.collected.busiest_programs", lambda _: ["ffmpeg (98% of a core)"])
    print_collected(found)
    told = capsys.readouterr().out
    assert "measured in this run: 2 records: 1 candidate, 1 of A/A runs" in told
    assert "1 of 2 records are suspect: 100% of their disturbed repeats ran on a slower core" in told
    assert "ffmpeg (98% of a core)" in told
    print_collected({**found, "suspect": 0})
    assert "suspect" not in capsys.readouterr().out
