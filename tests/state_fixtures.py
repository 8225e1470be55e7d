"""State files for tests: opened where a coordinator has them, and turns of one part."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fleet.engine.event_log import TurnPart
from fleet.planner.candidate_pools import CandidatePools
from fleet.state.schema import STATE
from fleet.state.state_file import StateFile


@contextmanager
def state_of(store: Path) -> Iterator[StateFile]:
    """The state file of a store, for a while."""
    with closing(StateFile(store / STATE)) as file:
        yield file


def keep(file: StateFile, part: TurnPart) -> None:
    """Give a part a turn of its own."""
    with file.turn() as turn:
        part.write(turn)
    part.confirm()


@contextmanager
def opened_pools(folder: Path, **options: Any) -> Iterator[tuple[CandidatePools, StateFile]]:
    """Pools over a state file of a folder."""
    with state_of(folder) as file:
        yield CandidatePools(file, **options), file


def forget_candidates(store: Path) -> None:
    """Take the candidates out of a state file, as a loss of their rows would."""
    with closing(sqlite3.connect(store / STATE)) as connection:
        connection.execute("DELETE FROM candidate")
        connection.commit()
