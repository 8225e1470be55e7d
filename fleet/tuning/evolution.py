"""Candidates of one workload that a search measures next, on a device that makes programs.

A population of some thousand candidates evolves in memory, scored by the head and by what the search has
learnt so far (`transfer.search`). A batch is chosen from the best of them, so that its candidates do not
repeat each other, and only those are made into programs, by the device's agent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from agents.records import Candidate, CandidateId, Outcome, Record, Workload
from fleet.planner.settings import Clock
from fleet.tuning.decision_scorer import DecisionScorer
from fleet.tuning.search import Search, choose, unmeasured
from transfer.errors import TraceError
from transfer.search.decisions import DesignTable
from transfer.search.learner import Learner
from transfer.search.population import EvolutionSettings, Individual, evolve, turned

#: Random candidates that the agent draws first: they show the design spaces and compute locations.
FIRST = 48
#: Best candidates of a population that the whole head judges, and of these that a batch is chosen from.
_DRAFTED, _FINAL = 256, 192
#: Standard deviations that a candidate gets as credit for being uncertain.
_BOLDNESS = 2.0
#: Candidates that are made for each one wanted, and calls at most: some fit no program, or are known.
_SPARE, _CALLS = 1.25, 4
#: Share of a batch that may be the best of like devices, where nothing was measured yet.
_PAIRED = 0.25
#: Share of a workload's first batch that are the head's first choices of random candidates: it knows those
#: best, and what evolves by its score alone may be its errors.
_PLAIN = 0.375
#: Share of a batch that is drawn at random, so that blind spots of the model are seen as well; and without a
#: head, until so many candidates are tried: what few measurements say of all others is little.
_EXPLORATION, _HEADLESS, _HEADLESS_UNTIL = 0.125, 0.5, 32
#: From so many tried candidates on, that share begins with such leaders with a choice hardly ever tried.
_TURNED_FROM, _LEADERS = 16, 4

Draw = Callable[[int, Iterable[CandidateId]], list[Candidate]]
Derive = Callable[[Sequence[str]], list[Candidate]]


@dataclass(slots=True, eq=False)
class Evolution:
    """The population of one workload. Not safe between threads."""

    workload: Workload
    judge: DecisionScorer
    #: Draws random candidates, none of those named.
    draw: Draw
    #: Makes candidates of decisions; some are refused.
    derive: Derive
    #: Told of the time that scoring takes.
    clock: Clock
    #: Traces of the best candidates of like devices.
    foreign: Sequence[str] = ()
    _drawn: list[Candidate] = field(default_factory=list)
    _table: DesignTable = field(default_factory=DesignTable)
    _learner: Learner = field(default_factory=Learner)
    #: Measured, asked for, or refused.
    _excluded: set[Individual] = field(default_factory=set)
    #: Measured candidates that were taken in, and those of them that can evolve, in the learner's order.
    _met: set[CandidateId] = field(default_factory=set)
    _learnt: list[CandidateId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._individuals(self.foreign)

    def learn(self, records: Iterable[Record]) -> None:
        """Take in what was measured; of a candidate its first latency until the next proposal."""
        fresh: dict[CandidateId, Record] = {}
        for record in records:
            if record.outcome is Outcome.OK and record.candidate_id not in self._met:
                fresh.setdefault(record.candidate_id, record)
        if not fresh:
            return
        self._met |= fresh.keys()
        evolvable = []
        for record in fresh.values():
            if individuals := self._individuals([record.trace]):
                self._excluded.update(individuals)
                evolvable.append(record)
        judged = self.judge.of_traces(self.workload, [record.trace for record in evolvable])
        latency = np.array([record.latency_secs for record in evolvable])
        self._learner.learn(judged.features, judged.log_scores, latency)
        self._learnt += [record.candidate_id for record in evolvable]

    def propose(self, search: Search, count: int, seed: int) -> list[Candidate]:
        """Candidates to measure, at most `count`; none where the space gives no more."""
        place = f"{seed}/{search.tried}"
        if not self._drawn or not self._table.designs:
            self._draw(search)
        is_blind = not self.judge.serves and search.tried < _HEADLESS_UNTIL
        share = _HEADLESS if is_blind else _EXPLORATION
        at_random = min(count, max(1, round(count * share))) if count > 1 else 0
        proposed: dict[CandidateId, Candidate] = {}
        if self._table.designs:
            self._evolved(search, count - at_random, place, proposed)
        if search.tried >= _TURNED_FROM:
            leaders = self._individuals(search.parents[:_LEADERS])
            self._make(search, turned(leaders, self._excluded), "evolved", count, proposed)
        excluded = search.excluded | proposed.keys()
        if len(unmeasured(self._drawn, excluded)) < count - len(proposed):
            self._draw(search)
        # Where evolution gives fewer than asked, more are drawn at random.
        remaining = unmeasured(self._drawn, excluded)
        return [*proposed.values(), *choose(remaining, count - len(proposed), 1.0, place)]

    def _evolved(
        self, search: Search, count: int, place: str, proposed: dict[CandidateId, Candidate]
    ) -> None:
        """Evolve a population, choose a batch of it, and make that into candidates."""
        with self.clock.part("rank"):
            # Leaders are timed again: one that was fast by chance would hide what is left to gain.
            self._learner.retime(np.array([search.latency(candidate_id) for candidate_id in self._learnt]))
            ranked = self._ranked(search, count, place)
        if not search.tried and self.judge.version:
            self._plain(search, count, proposed)
        if not search.tried:
            paired = [Candidate(workload_id=self.workload.workload_id, trace=t) for t in self.foreign]
            fresh = [candidate for candidate in paired if candidate.candidate_id not in search.excluded]
            for candidate in fresh[: round(count * _PAIRED)]:
                proposed.setdefault(candidate.candidate_id, replace(candidate, origin="paired"))
        # Without a champion too: what the search has learnt chose them, so they judge no head.
        self._make(search, ranked, "model", count, proposed)

    def _make(
        self,
        search: Search,
        individuals: list[Individual],
        origin: str,
        count: int,
        proposed: dict[CandidateId, Candidate],
    ) -> None:
        """Make those wanted into candidates until there are `count` of all; some are refused."""
        spare = _SPARE if origin == "model" else 1.0
        for _ in range(_CALLS):
            missing = count - len(proposed)
            if missing <= 0 or not individuals:
                break
            asking = math.ceil(missing * spare)
            requested, individuals = individuals[:asking], individuals[asking:]
            derived = self.derive([individual.design.trace(individual.genes) for individual in requested])
            # Asked for again it would come back again: refused, or another name of a known one.
            self._excluded.update(requested)
            for candidate in derived:
                if candidate.candidate_id not in search.excluded and len(proposed) < count:
                    proposed.setdefault(candidate.candidate_id, replace(candidate, origin=origin))

    def _plain(self, search: Search, count: int, proposed: dict[CandidateId, Candidate]) -> None:
        """The head's first choices of the random candidates."""
        with self.clock.part("rank"):
            candidates = unmeasured(self._drawn, search.excluded)
            judged = self.judge.of_traces(self.workload, [candidate.trace for candidate in candidates])
            order = np.argsort(-judged.log_scores, kind="stable")[: round(count * _PLAIN)]
        proposed |= {
            candidates[at].candidate_id: replace(candidates[at], origin="model") for at in order.tolist()
        }

    def _ranked(self, search: Search, count: int, place: str) -> list[Individual]:
        """The batch, and some more that take the places of those that make no program."""
        elites = self._individuals(search.parents or self.foreign)
        evolved = evolve(self._table, elites, self._draft, self._excluded, EvolutionSettings(), place)
        like = [
            individual for individual in self._individuals(self.foreign) if individual not in self._excluded
        ]
        drafted = [*evolved[:_DRAFTED], *like]
        if not drafted:
            search.expect(0.0)
            return []
        whole = self.judge.of_genes(self.workload, drafted)
        speeds = self._learner.log_speeds(whole.features, whole.log_scores)
        best = np.argsort(-speeds, kind="stable")[:_FINAL]
        final = [drafted[at] for at in best.tolist()]
        judged = whole.take(best)
        likely = judged.log_scores + np.log(np.maximum(self.judge.validity(judged), 1e-3))
        order = self._learner.choose(judged.features, likely, round(2 * count * _SPARE), _BOLDNESS)
        batch = order[:count]
        search.expect(self._learner.gain(judged.features[batch], judged.log_scores[batch], search.tried))
        return [final[at] for at in order]

    def _draft(self, individuals: Sequence[Individual]) -> NDArray[np.float64]:
        judged = self.judge.of_genes(self.workload, individuals, draft=True)
        return self._learner.log_speeds(judged.features, judged.log_scores)

    def _draw(self, search: Search) -> None:
        exclude = search.excluded | {candidate.candidate_id for candidate in self._drawn}
        fresh = self.draw(FIRST, exclude)
        self._drawn += fresh
        self._individuals(candidate.trace for candidate in fresh)

    def _individuals(self, traces: Iterable[str]) -> list[Individual]:
        """Those of traces that can evolve; their designs are taken up."""
        individuals = []
        for trace in traces:
            with suppress(TraceError):
                individuals.append(Individual(*self._table.read(trace)))
        return individuals
