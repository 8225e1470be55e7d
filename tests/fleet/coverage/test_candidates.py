"""Candidates of families, over a state file: after restarts, beside live and replay devices, without room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from agents.records import Candidate, WorkloadId
from tests.scenario_fixtures import play, read_scenarios
from tests.state_fixtures import opened_candidates

SCENARIOS = read_scenarios(Path(__file__).with_name("candidate_scenarios.txt"))


class NoRoomError(Exception):
    """Ends a turn, as a full disk does."""


class Scenario:
    """Lives of the candidates over one state file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.life, self.live = folder, ExitStack(), set[str]()

    def act(self, line: str) -> None:
        match line.split():
            case ["open", *live]:
                self.life.close()
                self.live = set(live)
                opened = opened_candidates(self.folder, live=self.live)
                self.candidates, self.file = self.life.enter_context(opened)
            case ["live", family]:
                self.live.add(family)
                self.candidates.load()
            case ["add", family, workload, *traces]:
                workload_id = WorkloadId(workload)
                made = [Candidate(workload_id=workload_id, trace=trace, origin="random") for trace in traces]
                self.candidates.add((family, workload_id), made)
            case ["keep"]:
                self.file.keep()
            case ["fail"]:
                with suppress(NoRoomError), self.file.turn():
                    raise NoRoomError

    def value(self, path: str) -> list[str]:
        family, workload = path.split()
        space = family, WorkloadId(workload)
        return sorted(
            one.trace for one in self.candidates.get(space, self.candidates.latest(space, 99)).values()
        )


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path)
    with made.life:
        yield made


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, scenario: Scenario) -> None:
    play(SCENARIOS[title], scenario.act, scenario.value)


def test_memory_is_bounded_and_the_file_stands_in(tmp_path: Path) -> None:
    with opened_candidates(tmp_path, cache_bytes=2000) as (candidates, _):
        space = "cpu", WorkloadId("w1")
        drawn = [Candidate(workload_id=space[1], trace="x" * 300 + str(number)) for number in range(20)]
        candidates.add(space, drawn)
        assert list(candidates.get(space, [one.candidate_id for one in drawn]).values()) == drawn
