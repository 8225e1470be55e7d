from __future__ import annotations

import numpy as np
import pytest

from agents.records import Candidate
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from transfer.baselines import tlp
from transfer.baselines.tlp import published_rows
from transfer.data.dataset import Dataset
from transfer.data.joined_records import build_dataset
from transfer.errors import DatasetError
from transfer.features.extractor import Extractor
from transfer.features.published_features import CPU_LAYOUT, GPU_LAYOUT, published_features


def real_rows() -> tuple[Dataset, list[Candidate]]:
    workload = gmm_workload()
    candidates = gmm_candidates(workload, 7)
    spec, descriptor = cpu_device("cpu.a")
    records = [record_of(candidate, "cpu.a", 1e-3 * (n + 1)) for n, candidate in enumerate(candidates)]
    devices = {spec.device_id: (spec, descriptor)}
    return build_dataset(records, {workload.workload_id: workload}, devices), candidates


@pytest.mark.parametrize("layout", [CPU_LAYOUT, GPU_LAYOUT])
def test_rows_stand_in_the_order_of_the_dataset(layout, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three chunks, the last one smaller.
    monkeypatch.setattr(tlp, "_CHUNK", 3)
    dataset, candidates = real_rows()
    extractor = Extractor()
    found = published_rows(dataset, reversed(candidates), extractor.read, layout)
    assert found.shape == (7, layout.steps, layout.width)
    assert found.dtype == np.float32
    by_id = {candidate.candidate_id: candidate for candidate in candidates}
    for row, candidate_id in enumerate(dataset.candidate_ids):
        expected = published_features([extractor.read(by_id[candidate_id])], layout)[0]
        np.testing.assert_array_equal(found[row], expected)
    assert len(np.unique(found.reshape(7, -1), axis=0)) == 7


def test_others_are_passed_over_and_a_missing_one_is_an_error() -> None:
    dataset, candidates = real_rows()
    part = dataset.take(np.array([4, 1]))
    found = published_rows(part, candidates, Extractor().read, CPU_LAYOUT)
    assert found.shape == (2, CPU_LAYOUT.steps, CPU_LAYOUT.width)
    assert (found >= 0).all()
    with pytest.raises(DatasetError, match="6 candidates of the dataset are not among those given"):
        published_rows(dataset, candidates[:1], Extractor().read, CPU_LAYOUT)
