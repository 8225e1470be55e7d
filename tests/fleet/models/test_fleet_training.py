"""`fleet train` and `fleet eval` on small stores: what is kept, left out, judged and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_scenarios import ModelScenario
from tests.refresh_fixtures import some_workloads
from tests.scenario_fixtures import read_scenarios

pytestmark = pytest.mark.usefixtures("few_trees")

SCENARIOS = read_scenarios(Path(__file__).with_name("training_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    ModelScenario(tmp_path, some_workloads(6, 8)).play(SCENARIOS[title])
