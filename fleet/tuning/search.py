"""Which workload a search measures next, and which of its drawn candidates. Pure.

`tuning.py` draws, ranks and measures. Knows no Ray, disk, model or clock.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agents.records import Candidate, CandidateId, Outcome, Record, Workload

_Timing = TypeVar("_Timing")

#: Candidates that a round measures; a workload's first ones are short, for they teach most.
ROUND = 16
_SHORT, _SHORT_UNTIL = 8, 128
#: The first round of a workload that moves more bytes than it computes: its designs differ little.
_LIGHT = 4
#: What a round without progress leaves of the hope for the next one.
_HOPE = 0.6
#: Why a workload ends whose space gives no candidate that is not measured.
USED_UP = "all of its candidates are measured"
#: Best candidates of a workload that others evolve from.
PARENTS = 24
#: Candidates that a workload tries at least before it may end for want of gain.
_LEAST_TRIED = 48
#: Rounds in a row that must expect no gain before that counts: one may see no promising candidate.
_SURE = 3
#: Timings of a program from which on the middle one counts, not the least.
_MANY = 3
#: Programs that are timed again together, and how far behind the leader they may be.
_CONTENDERS, _NEAR = 8, 0.1
#: A second latency this much below the first makes a leader doubtful.
_DOUBTFUL = 0.1


@dataclass(slots=True)
class Search:
    """One workload as a search knows it."""

    workload: Workload
    #: Best latency known of all candidates; infinite where nothing ran.
    best_secs: float = math.inf
    #: Candidates that the search has measured, and those of them that did not run.
    tried: int = 0
    failed: int = 0
    #: Candidates that need no measurement: known before, or tried.
    excluded: set[CandidateId] = field(default_factory=set)
    #: (candidates tried, best latency) after each round.
    curve: list[tuple[int, float]] = field(default_factory=list)
    #: Rounds since the best latency fell.
    idle_rounds: int = 0
    #: Why it gets no further round; empty as long as it may.
    ended: str = ""
    #: Share by which the best latency may fall, as expected of the last rounds; none before the second.
    _gains: deque[float] = field(default_factory=lambda: deque(maxlen=_SURE))
    _best: dict[CandidateId, tuple[float, str]] = field(default_factory=dict)
    #: Latencies of each candidate that ran, by attempt.
    _latencies: dict[CandidateId, dict[int, float]] = field(default_factory=dict)
    #: Candidates that had run before the search.
    _earlier: frozenset[CandidateId] = frozenset()

    @property
    def may_gain(self) -> float:
        """Share by which the best latency may still fall in a round: the highest expected of the last few."""
        return max(self._gains, default=1.0)

    def expect(self, gain: float) -> None:
        """Take in what a round may gain: the 90 % quantile of what is thought of it."""
        if self.tried:  # before, nothing is known that could be a limit
            self._gains.append(gain)

    @property
    def parents(self) -> list[str]:
        """Traces of the best candidates, fastest first."""
        return [trace for _, trace in sorted(self._best.values())]

    @property
    def before_secs(self) -> float:
        """Best latency of the candidates known before the search; infinite where none had run.

        Measurements of them during the search count too: a leader that proves slower was slower before.
        """
        return min(map(self.latency, self._earlier), default=math.inf)

    def know(self, records: Iterable[Record]) -> None:
        """Take in what was measured on the device before the search."""
        self.see(records)
        self._earlier = frozenset(self._latencies)

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
        was, failed = self.best_secs, set[CandidateId]()
        chosen_ids = {candidate.candidate_id for candidate in chosen}
        for record in records:
            self._take(record)
            if record.outcome is not Outcome.OK and record.candidate_id in chosen_ids:
                failed.add(record.candidate_id)
        # Lost ones are not tried again: a device that is out of reach should not be asked for ever.
        self.excluded |= chosen_ids
        self.tried += len(chosen_ids)
        self.failed += len(failed)
        self.idle_rounds = 0 if self.best_secs < was else self.idle_rounds + 1
        self.curve.append((self.tried, self.best_secs))

    def _take(self, record: Record) -> None:
        if record.outcome is not Outcome.LOST:
            self.excluded.add(record.candidate_id)
        if record.outcome is not Outcome.OK:
            return
        # The index of a store may give a record again that the round has brought.
        self._latencies.setdefault(record.candidate_id, {})[record.attempt] = record.latency_secs
        self._best[record.candidate_id] = self.latency(record.candidate_id), record.trace
        if len(self._best) > PARENTS:
            del self._best[max(self._best, key=self._best.__getitem__)]
        self.best_secs = min(secs for secs, _ in self._best.values())

    def latency(self, candidate_id: CandidateId) -> float:
        """Seconds that a candidate which ran takes, of all its measurements."""
        return settled(sorted(self._latencies[candidate_id].values()))

    def doubtful(self) -> tuple[str, int] | None:
        """The leader if its two latencies differ so much that the faster one may be chance.

        Returns:
            Its trace, and the attempt that comes next; None where there is no doubt.
        """
        if not self._best:
            return None
        leader = min(self._best, key=self._best.__getitem__)
        latency_by_attempt = self._latencies[leader]
        if len(latency_by_attempt) != _MANY - 1 or min(latency_by_attempt.values()) > (1 - _DOUBTFUL) * max(
            latency_by_attempt.values()
        ):
            return None
        return self._best[leader][1], max(latency_by_attempt) + 1

    def contenders(self) -> tuple[list[str], int]:
        """Programs that may be the fastest, but were timed too rarely to tell.

        Of many programs timed once, the first is one that had luck. So those count that stand before the
        fastest program of three timings or more, and near the leader.

        Returns:
            Traces, the fastest first, and the attempt that comes next; none where the leader is settled.
        """
        ranked = sorted((secs, candidate_id) for candidate_id, (secs, _) in self._best.items())
        settled_secs = [secs for secs, candidate_id in ranked if len(self._latencies[candidate_id]) >= _MANY]
        last = min([*settled_secs[:1], self.best_secs * (1 + _NEAR)])
        open_ = [
            candidate_id
            for secs, candidate_id in ranked
            if secs <= last and len(self._latencies[candidate_id]) < _MANY
        ]
        chosen = open_[:_CONTENDERS]
        attempt = 1 + max((max(self._latencies[candidate_id]) for candidate_id in chosen), default=0)
        return [self._best[candidate_id][1] for candidate_id in chosen], attempt


def settled(timings: Sequence[_Timing]) -> _Timing:
    """Which of a program's timings in ascending order counts: the first of a few, the middle one of more."""
    return timings[0] if len(timings) < _MANY else timings[(len(timings) - 1) // 2]


def next_search(searches: Sequence[Search]) -> Search:
    """Choose the workload that gets the next round, of one or more that have not ended.

    Each is tried once, the heaviest first. Then the one that may take most off the networks' time wins,
    discounted for every round in a row that brought nothing: Ansor's task scheduler (Zheng et al. 2020,
    section 6) with the head's own interval in the place of its guesses.
    """
    fresh = [search for search in searches if not search.curve]
    if fresh:
        return max(fresh, key=lambda search: search.workload.weight * search.workload.flops)

    def hope(search: Search) -> float:
        share = search.workload.weight * search.best_secs * search.may_gain * _HOPE**search.idle_rounds
        # One that has never run yet is not worth every round that is left.
        return share if math.isfinite(share) else _HOPE**search.idle_rounds

    return max(searches, key=hope)


def round_count(search: Search, searches: Sequence[Search], remaining: int, expected: int) -> int:
    """How many candidates the next round of a workload measures.

    A program without any schedule takes twenty times as long as with a middling one. So where there are fewer
    candidates than first rounds want, each workload gets a share of them.

    Args:
        search: Of the workload.
        searches: All that may get a round.
        remaining: Candidates that the search may still measure, at least one.
        expected: Those that its minutes will allow, at most as many.
    """
    count = min(remaining, _SHORT if search.tried < _SHORT_UNTIL else ROUND)
    if search.curve:
        return count
    if search.workload.flops < search.workload.bytes_moved:
        count = min(remaining, _LIGHT)
    fresh = sum(not other.curve for other in searches)
    return min(count, max(1, expected // fresh))


def expected_trials(remaining: int, tried: int, secs: float, left_secs: float) -> int:
    """Candidates that a search will still measure, at its pace so far.

    Args:
        remaining: At most so many.
        tried: Measured so far, in `secs` seconds.
        secs: Since its first round began.
        left_secs: Until its last round begins; infinite without a limit.
    """
    if not tried or left_secs * tried >= remaining * secs:
        return remaining
    return int(left_secs * tried / secs)


def end_where_nothing_is_left(searches: Sequence[Search], noise_floor: float) -> None:
    """End workloads of which another round is not worth its time.

    That is so where the gain that may still be is below the noise floor, of the workload's own latency or of
    all workloads' time together: nobody could tell it from chance.
    """
    ran = [search for search in searches if math.isfinite(search.best_secs)]
    total = sum(search.workload.weight * search.best_secs for search in ran)
    for search in ran:
        if search.ended or search.tried < _LEAST_TRIED or not search.idle_rounds:
            continue
        if search.may_gain < noise_floor:
            search.ended = "nothing left to gain"
        elif search.workload.weight * search.best_secs * search.may_gain < noise_floor * total / len(
            searches
        ):
            search.ended = "others have more to gain"


def unmeasured(candidates: Iterable[Candidate], excluded: Collection[CandidateId]) -> list[Candidate]:
    """Candidates that need a measurement, each once: source devices often share their best ones."""
    candidate_by_id: dict[CandidateId, Candidate] = {}
    for candidate in candidates:
        if candidate.candidate_id not in excluded:
            candidate_by_id.setdefault(candidate.candidate_id, candidate)
    return list(candidate_by_id.values())


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
