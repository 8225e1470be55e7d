"""What published features lose is counted candidate by candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning_lost import as_sentence, candidates_of, lost_by_published
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.onboarding_fixtures import SOURCES, fill
from transfer.features.extractor import Extractor
from transfer.language.to_ansor import to_ansor_steps


def test_every_primitive_has_a_step_or_is_lost(tmp_path: Path) -> None:
    reader = Store.read(fill(tmp_path / "store", *SOURCES))
    snapshot = load_snapshot(reader)
    found = lost_by_published(reader, snapshot)
    read = Extractor().read
    sequences = [read(one, snapshot.workloads[one.workload_id]) for one in candidates_of(reader, snapshot)]
    assert len(sequences) == len(snapshot.dataset)
    assert found["primitives"] == sum(map(len, sequences))
    steps = sum(len(to_ansor_steps(one)) for one in sequences)
    shares = found["no_step"]
    assert shares["all"] == pytest.approx(1 - steps / found["primitives"], abs=1e-4)
    assert 0 < shares["all"] < 1
    assert sum(share for kind, share in shares.items() if kind != "all") <= shares["all"] + 1e-3
    assert found["schedules_cut"] == sum(len(to_ansor_steps(one)) > 25 for one in sequences) / len(sequences)
    told = as_sentence(found)
    assert f"Of {found['primitives']:,} primitives" in told
    assert f"{shares['all']:.1%}" in told
