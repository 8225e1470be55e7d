"""Ray Train on our training loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import FleetError
from fleet.models.ray_train import train_with_workers
from tests.model_fixtures import CONFIG, make_dataset
from transfer.train.training import train

DATASET = make_dataset()
ROWS, HELD = np.flatnonzero(DATASET.group < 6), np.flatnonzero(DATASET.group >= 6)
CONFIG_OF_TWO = replace(CONFIG, epochs=4, sizes=replace(CONFIG.sizes, dropout=0.0), device="cpu")


def test_without_pandas_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.models.ray_train.find_spec", lambda name: None)
    with pytest.raises(FleetError, match=r"needs the package pandas: pip install .*or train with one worker"):
        train_with_workers(DATASET, ROWS, config=CONFIG_OF_TWO, seed=0, workers=2, run_folder=tmp_path)


@pytest.mark.ray
@pytest.mark.slow
# Ray Train starts a controller and half a dozen helpers: 20 s on two idle cores, more on busy ones.
@pytest.mark.timeout(300)
# Ray Train reads settings of Ray Data that Ray itself has deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_two_workers_of_ray_train_find_what_one_worker_finds(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the extra `workers` is not installed")
    found = train_with_workers(
        DATASET,
        ROWS,
        config=CONFIG_OF_TWO,
        seed=5,
        workers=2,
        run_folder=tmp_path / "run",
        validation_rows=HELD,
    )
    one = train(DATASET, ROWS, config=CONFIG_OF_TWO, seed=5, validation_rows=HELD)
    for name in ("train_loss", "validation_loss"):
        expected = [getattr(report, name) for report in one.history]
        assert [getattr(report, name) for report in found.history] == pytest.approx(expected, rel=1e-3)
    block = DATASET.features.take(HELD)
    for device_id in one.model.device_ids:
        np.testing.assert_allclose(
            found.model.score(block, device_id), one.model.score(block, device_id), atol=1e-3
        )
    left = {path.name for path in (tmp_path / "run").iterdir() if "tfevents" not in path.name}
    assert left == {"curves.jsonl"}
