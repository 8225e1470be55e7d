"""Which workload a search measures next, and which of its drawn candidates. Pure.

`tuning.py` draws, ranks and measures. Knows no Ray, disk, model or clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agents.records import Candidate, CandidateId, Outcome, Record, Workload

#: What a round without progress leaves of the hope for the next one.
_HOPE = 0.6
#: Best candidates of a workload that others evolve from.
PARENTS = 8


@dataclass(slots=True)
class Search:
    """One workload as a search knows it."""

    workload: Workload
    #: Best latency known on the device before the search; infinite where nothing was measured.
    before_secs: float = math.inf
    best_secs: float = math.inf
    #: Candidates that the search has measured, and those of them that did not run.
    tried: int = 0
    failed: int = 0
    #: Candidates that need no measurement: known before, or tried.
    known: set[CandidateId] = field(default_factory=set)
    #: (candidates tried, best latency) after each round.
    curve: list[tuple[int, float]] = field(default_factory=list)
    #: Rounds since the best latency fell.
    idle_rounds: int = 0
    _best: dict[CandidateId, tuple[float, str]] = field(default_factory=dict)

    @property
    def parents(self) -> list[str]:
        """Traces of the best candidates, fastest first."""
        return [trace for _, trace in sorted(self._best.values())]

    def know(self, records: Iterable[Record]) -> None:
        """Take in what was measured on the device before the search."""
        self.see(records)
        self.before_secs = self.best_secs

    def see(self, records: Iterable[Record]) -> None:
        """Take in measurements of the device that belong to no round."""
        for record in records:
            self._take(record)

    def learn(self, chosen: Sequence[Candidate], records: Iterable[Record]) -> None:
        """Take in a round.

        Args:
            chosen: What was to be measured.
            records: What came of it, second measurements of the leaders among them.
        """
        was, asked, failed = self.best_secs, {one.candidate_id for one in chosen}, set[CandidateId]()
        for record in records:
            self._take(record)
            if record.outcome is not Outcome.OK and record.candidate_id in asked:
                failed.add(record.candidate_id)
        # Lost ones are not tried again: a device that is out of reach should not be asked for ever.
        self.known |= asked
        self.tried += len(asked)
        self.failed += len(failed)
        self.idle_rounds = 0 if self.best_secs < was else self.idle_rounds + 1
        self.curve.append((self.tried, self.best_secs))

    def _take(self, record: Record) -> None:
        if record.outcome is not Outcome.LOST:
            self.known.add(record.candidate_id)
        if record.outcome is not Outcome.OK:
            return
        self.best_secs = min(self.best_secs, record.latency_secs)
        mine = (record.latency_secs, record.trace)
        self._best[record.candidate_id] = min(mine, self._best.get(record.candidate_id, mine))
        if len(self._best) > PARENTS:
            del self._best[max(self._best, key=self._best.__getitem__)]


def next_search(searches: Sequence[Search]) -> Search:
    """Choose the workload that gets the next round.

    Each is tried once, the heaviest first. Then the one whose runs take most of the networks' time wins,
    discounted for every round in a row that brought nothing: a short form of Ansor's task scheduler (Zheng
    et al. 2020, section 6), without its guess at what similar workloads reach.

    Args:
        searches: At least one; none of them exhausted.
    """
    fresh = [one for one in searches if not one.curve]
    if fresh:
        return max(fresh, key=lambda one: one.workload.weight * one.workload.flops)

    def hope(one: Search) -> float:
        share: float = one.workload.weight * one.best_secs * _HOPE**one.idle_rounds
        # One that has never run yet is not worth every round that is left.
        return share if math.isfinite(share) else _HOPE**one.idle_rounds

    return max(searches, key=hope)


def unmeasured(candidates: Iterable[Candidate], known: Collection[CandidateId]) -> list[Candidate]:
    """Candidates that need a measurement, each once: source devices often share their best ones."""
    found: dict[CandidateId, Candidate] = {}
    for one in candidates:
        if one.candidate_id not in known:
            found.setdefault(one.candidate_id, one)
    return list(found.values())


def choose(ranked: Sequence[Candidate], count: int, exploration: float, seed: str) -> list[Candidate]:
    """Choose a round's candidates: the first ones, and a random share of the others.

    Args:
        ranked: Most promising first.
        count: Of the round.
        exploration: Share (0 to 1) that is drawn from behind the first ones.
        seed: Of that draw.
    """
    at_random = round(min(count, len(ranked)) * exploration)
    first, rest = list(ranked[: count - at_random]), list(ranked[count - at_random :])
    return first + random.Random(seed).sample(rest, min(at_random, len(rest)))
