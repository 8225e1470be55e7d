"""The ways to run a network that are timed beside its library: all compute the same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from agents.networks.latency import SIDES, time_sides
from fleet.config.choices import Rival
from tests.network_fixtures import save_network


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # of torch about itself
def test_other_runtimes_give_what_torch_gives(tmp_path: Path) -> None:
    network = save_network(tmp_path / "small.pt2")
    sides = ("onnxruntime", "openvino")
    question = {"network": str(network), "libraries": {}, "sides": sides, "lock": "", "gpu_index": None}
    timed = time_sides({**question, "threads": 1, "turn_secs": 0.001})
    installed = {side for side in sides if find_spec(side)}
    assert timed["secs"].keys() == {"torch_eager", *installed}
    assert timed["absent"].keys() == set(sides) - installed
    assert all(difference < 1e-5 for difference in timed["differences"].values())
    assert all(secs > 0 for secs in timed["secs"].values())


def test_a_setting_names_the_ways_that_there_are() -> None:
    assert set(get_args(Rival)) == set(SIDES)
