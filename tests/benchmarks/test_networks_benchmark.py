"""The benchmark of whole networks: what it takes of TVM's database, and what its check of the corpus has."""

from __future__ import annotations

import json

from agents.networks.corpus import CORPUS
from agents.networks.network_name import read_network_name
from benchmarks.networks import NETWORKS, device_on_all_cores, good_records, summary, wall_ratio
from benchmarks.networks_corpus import tiny_names
from tests.record_fixtures import make_spec
from tests.scenario_fixtures import check_facts


def test_failed_and_cut_off_records_of_tvm_are_left_out() -> None:
    ran, failed = (json.dumps([0, [[], [secs], {"kind": "llvm"}, []]]) for secs in (1e-3, 1e10))
    assert good_records("\n".join([ran, failed, ran[:-4]])) == [ran]
    assert good_records("") == []


def test_a_summary_has_means_and_the_worst_network() -> None:
    assert len({read_network_name(text).text for text in NETWORKS.values()}) == 10
    secs = {"tvm_tuned": 1e-3, "openvino": 2e-3, "onnxruntime": 1e-3}
    rows = {
        "a": {"latency_secs": secs, "fastest": "tvm_tuned", "is_equal": True, "speedup_vs_best_vendor": 4.0},
        "b": {"latency_secs": secs, "fastest": "openvino", "is_equal": True, "speedup_vs_best_vendor": 1.0},
    }
    found = summary(make_spec(), rows)
    # A mean of some networks is none of all.
    facts = """
        speedup_vs_best_vendor = 2.0
        worst.speedup_vs_best_vendor = {network: b, value: 1.0}
        speedup_vs_eager = null
        is_equal = true
    """
    check_facts(found, facts)


def test_a_search_is_compared_with_the_time_until_it_was_as_fast() -> None:
    curve = [[10.0, 4e-3], [20.0, 2e-3], [60.0, 1e-3]]
    # Together the programs take twice as long as alone, so stock's 4 ms are 2 ms of ours.
    secs = {"tvm_tuned": 2e-3, "tune_relax_stock": 4e-3}
    assert wall_ratio(secs, curve, 200.0) == 10.0
    assert wall_ratio(secs | {"tune_relax_stock": 1e-3}, curve, 200.0) is None
    assert wall_ratio(secs, curve, None) is None


def test_all_cores_are_one_device_with_as_many_threads() -> None:
    spec = device_on_all_cores(make_spec(), {3, 1})
    assert (spec.cores, spec.threads, spec.target["num-cores"]) == ((1, 3), 2, 2)


def test_the_check_of_the_corpus_has_every_architecture_once() -> None:
    names = {name: read_network_name(text) for name, text in tiny_names().items()}
    assert {network.name for network in names.values()} == {read_network_name(text).name for text in CORPUS}
    assert len(names) >= 40
    assert dict(names["resnet"].options)["hidden_sizes"] == [8, 16, 16, 16]
