"""The ways to run a network that are timed beside its library: all compute the same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from agents.networks.latency import time_sides
from tests.network_fixtures import save_network


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # of torch about itself
def test_other_runtimes_give_what_torch_gives(tmp_path: Path) -> None:
    network = save_network(tmp_path / "small.pt2")
    sides = ("torch_eager", "onnxruntime", "openvino")
    question = {"network": str(network), "libraries": {}, "sides": sides, "lock": "", "gpu_index": None}
    timed = time_sides({**question, "threads": 1, "turn_secs": 0.001})
    installed = {side for side in sides[1:] if find_spec(side)}
    assert timed["secs"].keys() == {"torch_eager", *installed}
    assert timed["absent"].keys() == set(sides[1:]) - installed
    assert all(difference < 1e-5 for difference in timed["differences"].values())
    assert all(secs > 0 for secs in timed["secs"].values())
