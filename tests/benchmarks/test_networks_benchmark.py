"""The benchmark of whole networks: what it takes of TVM's database, and what its check of the corpus has."""

from __future__ import annotations

import json

from agents.networks.corpus import CORPUS
from agents.networks.network_name import read_network_name
from benchmarks.networks import good_records
from benchmarks.networks_corpus import tiny_names


def test_failed_and_cut_off_records_of_tvm_are_left_out() -> None:
    ran, failed = (json.dumps([0, [[], [secs], {"kind": "llvm"}, []]]) for secs in (1e-3, 1e10))
    assert good_records("\n".join([ran, failed, ran[:-4]])) == [ran]
    assert good_records("") == []


def test_the_check_of_the_corpus_has_every_architecture_once() -> None:
    names = {name: read_network_name(text) for name, text in tiny_names().items()}
    assert {network.name for network in names.values()} == {read_network_name(text).name for text in CORPUS}
    assert len(names) >= 40
    assert dict(names["resnet"].options)["hidden_sizes"] == [8, 16, 16, 16]
