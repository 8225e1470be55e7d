"""The benchmark of whole networks: what it takes of TVM's database, how it sums up, and its check."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agents.networks.corpus import CORPUS
from agents.networks.network_name import read_network_name
from benchmarks.networks import good_records, summary
from benchmarks.networks_corpus import check_corpus, table, tiny_names
from tests.record_fixtures import make_spec


def test_failed_and_cut_off_records_of_tvm_are_left_out() -> None:
    ran, failed = (json.dumps([0, [[], [secs], {"kind": "llvm"}, []]]) for secs in (1e-3, 1e10))
    assert good_records("\n".join([ran, failed, ran[:-4]])) == [ran]
    assert good_records("") == []


def test_means_are_geometric_and_a_missing_side_is_none() -> None:
    rows = {
        "one": {"is_equal": True, "speedup_vs_untuned": 2.0, "speedup_vs_tune_relax": 1.0},
        "two": {"is_equal": False, "speedup_vs_untuned": 8.0, "speedup_vs_tune_relax": 4.0},
    }
    found = summary(make_spec(), rows, own_programs=True)
    assert (found["speedup_vs_untuned"], found["speedup_vs_tune_relax_equal_time"]) == (4.0, 2.0)
    assert found["speedup_vs_onnxruntime"] is None
    assert found["is_equal"] is False
    assert "its pipeline's programs" in found["baseline"]


def test_the_check_of_the_corpus_has_every_architecture_once() -> None:
    names = {name: read_network_name(text) for name, text in tiny_names().items()}
    assert {network.name for network in names.values()} == {read_network_name(text).name for text in CORPUS}
    assert len(names) >= 40
    assert dict(names["resnet"].options)["hidden_sizes"] == [8, 16, 16, 16]


def test_each_type_of_an_architecture_is_right_refused_or_late(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"result": "ok", "difference": 2e-7, "workloads": 5, "secs": 3.0}
    refused = {"result": "refused", "why": "no bfloat16", "secs": 2.0}
    lines = [f"{json.dumps(['float32', right])}\n", f"{json.dumps(['float16', refused])}\n", "Segfault\n"]
    child = f"import sys; sys.stdout.write({''.join(lines)!r}); sys.stdout.flush(); sys.exit('died')"
    start = subprocess.Popen
    monkeypatch.setattr(
        "benchmarks.networks_corpus.subprocess.Popen",
        lambda _, **how: start([sys.executable, "-c", child], **how),
    )
    found = check_corpus(["bert", "gpt2"], jobs=2)
    assert (found["architectures"], found["compiled"], found["refused"], found["failed_late"]) == (2, 2, 2, 2)
    assert found["networks"]["bert"]["bfloat16"]["why"] == "its process ended with 1 died"
    assert list(table(found))[2:] == [
        f"| {name} | 2.0e-07 | refused after 2 s: no bfloat16 | "
        "failed late after 0 s: its process ended with 1 died |"
        for name in ("bert", "gpt2")
    ]
