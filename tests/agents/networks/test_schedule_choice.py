"""Each program of a network takes the way in which it is fastest there, its weights in that way's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from agents.networks import library
from agents.networks.graph import lowered, workloads_of
from agents.networks.schedule_choice import Way, fastest_ways, ways
from agents.programs.design_space import DesignSpace
from agents.records import Family
from tests.network_fixtures import exported


def test_the_fastest_schedule_is_tried_with_its_weights_in_both_orders() -> None:
    assert ways(["a", "b"], True) == [Way("a", True), Way("a", False), Way("b", True)]
    assert ways(["a", "b"], False) == [Way("a", False), Way("b", False)]
    assert ways([], True) == []
    assert len(ways([str(number) for number in range(16)], True)) == 8


def test_another_way_is_taken_if_it_is_faster_beyond_luck() -> None:
    secs = [
        {"product": 1.0, "image": 1.0, "sum": 1.0, "sort": 1.0},
        {"product": 0.99, "image": 0.7, "sum": 1.2},
        {"product": 1.5, "image": 0.8, "sum": 1.1, "sort": 0.5},
    ]
    assert fastest_ways(secs) == {"product": 0, "image": 1, "sum": 0, "sort": 2}


@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about its own export
@pytest.mark.parametrize("way", [0, 1])
def test_the_compiler_puts_the_weights_of_the_ordered_way_in_order(
    way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import tvm
    from tvm import relax

    torch.manual_seed(0)
    network, rows = torch.nn.Linear(64, 48), torch.randn(32, 64)
    loaded = exported(network, (rows,), tmp_path)
    path = loaded.network.text
    [workload] = workloads_of(lowered(loaded, Family.CPU), Family.CPU, path)
    candidates = DesignSpace(workload, Family.CPU).sample(8, seed=1).candidates
    # Only a tiled schedule reads its weights in another order.
    [tiled, *_] = [candidate.trace for candidate in candidates if "Split" in candidate.trace]
    timed_ways = []

    def chosen(secs_by_way: Sequence[Mapping[str, float]]) -> dict[str, int]:
        """Which way is faster in so small a network is luck."""
        timed_ways.extend(secs_by_way)
        return {workload.workload_id: way}

    monkeypatch.setattr(library, "fastest_ways", chosen)
    question = {"network": path, "target": {"kind": "llvm"}, "folder": str(tmp_path)}
    question |= {"traces": {workload.workload_id: [tiled]}, "lock": "", "cores": []}
    answer = library.build(question, Family.CPU)
    assert (answer["applied"], answer["ways"], answer["changed"]) == (1, 2, way)
    assert [list(secs) for secs in timed_ways] == [[workload.workload_id]] * 2

    built = tvm.runtime.load_module(str(tmp_path / library.TUNED))
    text = built["as_text"]()
    assert ("_prepacked" in text) == (way == 0)
    # Nothing does it when the network runs.
    assert "_weight_prepack" not in text
    [output] = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(rows.numpy()))
    np.testing.assert_allclose(output.numpy(), network(rows).detach().numpy(), atol=1e-5)
