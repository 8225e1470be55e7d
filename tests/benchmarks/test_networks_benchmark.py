"""The benchmark of whole networks: what it takes of TVM's database, and how it sums up."""

from __future__ import annotations

import json

from benchmarks.networks import good_records, summary
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
