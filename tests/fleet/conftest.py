"""One store of recorded devices, and the models that learnt from it, for all: no test changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.records import DeviceId
from tests.onboarding_fixtures import BROKEN, NEW, SOURCES, fill

if TYPE_CHECKING:
    from fleet.models.versions import DatasetSnapshot
    from fleet.store.store import Store
    from transfer.model.fleet_tlp import FleetTLP


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty one, open for writing."""
    from fleet.store.store import Store

    with Store.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def recorded_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the source devices, the new one, and one on which everything failed have measured."""
    return fill(tmp_path_factory.mktemp("recorded") / "store", *SOURCES, NEW, BROKEN)


@pytest.fixture(scope="session")
def recorded(recorded_store: Path) -> DatasetSnapshot:
    """The source devices and the new one."""
    return _snapshot(recorded_store, *SOURCES, NEW)


@pytest.fixture(scope="session")
def recorded_sources(recorded_store: Path) -> DatasetSnapshot:
    """The source devices alone."""
    return _snapshot(recorded_store, *SOURCES)


@pytest.fixture(scope="session")
def source_model(recorded_sources: DatasetSnapshot) -> FleetTLP:
    """A model of the source devices."""
    return _trained(recorded_sources)


@pytest.fixture(scope="session")
def model_of_all(recorded: DatasetSnapshot) -> FleetTLP:
    """A model that was trained of the new device, too."""
    return _trained(recorded)


def _snapshot(store: Path, *devices: str) -> DatasetSnapshot:
    from fleet.models.versions import load_snapshot
    from fleet.store.store import Store

    return load_snapshot(Store.read(store), device_ids=list(map(DeviceId, devices)))


def _trained(snapshot: DatasetSnapshot) -> FleetTLP:
    import numpy as np

    from transfer.train.rows import TrainConfig
    from transfer.train.training import train

    rows = np.arange(len(snapshot.dataset))
    return train(snapshot.dataset, rows, config=TrainConfig(epochs=1, trees=5), seed=0).model


@pytest.fixture(scope="module")
def few_trees() -> Iterator[None]:
    """Models that are trained in this process have few trees, on which most of a small training is spent."""
    from transfer.train.rows import TrainConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TrainConfig.__init__.__kwdefaults__, "trees", 50)
        yield
