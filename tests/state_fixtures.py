"""State files for tests: opened where a coordinator has them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agents.records import Record
from fleet.coverage.candidates import FamilyCandidates
from fleet.coverage.coverage import Coverage
from fleet.planner.workload_discovery import CHOSEN
from fleet.state.rows import result_of
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile


@contextmanager
def state_of(store: Path) -> Iterator[StateFile]:
    """The state file of a store, for a while."""
    with closing(StateFile(store / STATE)) as file:
        yield file


def take_in(state: StateFile, coverage: Coverage, records: Sequence[Record]) -> None:
    """Have coverage and state file know of records."""
    state.change(lambda turn: turn.add_results(map(result_of, records)))
    coverage.add(records)


@contextmanager
def opened_candidates(folder: Path, **options: Any) -> Iterator[tuple[FamilyCandidates, StateFile]]:
    """Candidates over a state file of a folder."""
    with state_of(folder) as file:
        yield FamilyCandidates(file, **options), file


def forget_candidates(store: Path) -> None:
    """Take the candidates out of a state file, as a loss of their rows would."""
    with closing(sqlite3.connect(store / STATE)) as connection:
        connection.execute("DELETE FROM candidate")
        connection.commit()


def choose_first_workloads(store: Path, count: int) -> None:
    """Have the one group of a fleet measure only the first of the workloads that it has chosen."""
    with state_of(store) as file, file.turn() as turn:
        [[group, entry]] = json.loads(file.note(CHOSEN) or b"{}").items()
        turn.put_note(CHOSEN, json.dumps({group: {**entry, "ids": entry["ids"][:count]}}).encode())
