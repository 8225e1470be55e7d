"""Candidates of a workload: members of MetaSchedule's design space, random or near good ones, for a family.

A candidate's trace is complete: sampled decisions and the instructions of the post-processors are in it,
so the same trace gives the same program under any target of the family. Runs in a worker process
(`child.py`); imports TVM when called.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agents.programs.derivation import Derivation, comparable, match
from agents.programs.loop_orders import reordered, tiled_block
from agents.programs.trace_rules import TraceRefusedError, read_trace
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.programs.workloads import own_module
from agents.records import DERIVED, Candidate, CandidateId, Family, Workload, WorkloadId, canonical_json

# Tile sizes of a GPU's design space with as many threads as a GPU takes, drawn as TVM draws them.
#
# MetaSchedule tiles each spatial loop for blocks, virtual threads, threads and two loops inside (its rule
# `MultiLevelTiling`), and draws each tile by itself. Its post-processors refuse whatever has fewer threads
# than a warp or more than a block holds: some nine draws in ten, after 8 ms each. Here tiles are drawn
# until their threads fit, before anything is built of them, so the programs that pass are the same, as
# often as each other.

#: Factors of a spatial loop in MetaSchedule's tiling for GPUs, and the one that is bound to threads.
_FACTORS, _THREADS = 5, 2
_LOW, _HIGH = (f"meta_schedule.thread_extent_{end}_inclusive" for end in ("low", "high"))
#: Notes a block whose tiles are bound to warps, not threads: tensor cores are used by a warp at once.
_OF_WARPS, _WARP_THREADS = "warp_execution", 32
#: Draws after which the last one is taken, whatever its threads: a small workload may have none that fit.
_MOST_DRAWS = 1_000
#: Trial division ends here, so that the extent of a stranger's loop holds nobody up.
_LARGEST_DIVISOR = 1_000


@dataclass(frozen=True, slots=True)
class ThreadTiles:
    """The spatial tiles of one design space."""

    #: Their instructions, of TVM's kind `SamplePerfectTile`.
    tiles: list[Any]
    #: Of the loop that each tiles: its prime powers, and the largest innermost factor.
    loops: list[tuple[dict[int, int], int]]
    #: Fewest and most threads, or warps if tensor cores compute.
    bounds: tuple[int, int]

    @classmethod
    def of_space(cls, space: Any) -> ThreadTiles | None:
        """Those of a design space (`tvm.s_tir.schedule.Trace`); None where there is not one tiled block."""
        notes = {key: [step.inputs[1] for step in space.insts if _note(step) == key] for key in (_LOW, _HIGH)}
        if any(len(values) != 1 for values in notes.values()):
            return None
        tiles = [
            step
            for step in space.insts
            if step.kind.name == "SamplePerfectTile" and int(step.attrs[0]) == _FACTORS
        ]
        extents = [math.prod(map(int, space.decisions[tile])) for tile in tiles]
        loops = [
            (prime_powers(extent), int(tile.attrs[1])) for tile, extent in zip(tiles, extents, strict=True)
        ]
        size = _WARP_THREADS if any(_note(step) == _OF_WARPS for step in space.insts) else 1
        [low], [high] = notes.values()
        return cls(tiles, loops, (-(-int(low) // size), int(high) // size))

    def draw(self, draws: random.Random) -> dict[Any, list[int]]:
        """Draw the tile of each loop, outermost factor first, by its instruction."""
        low, high = self.bounds
        factors: list[list[int]] = []
        for _ in range(_MOST_DRAWS):
            factors = [draw_tile(powers, _FACTORS, most, draws) for powers, most in self.loops]
            if low <= math.prod(tile[_THREADS] for tile in factors) <= high:
                break
        return dict(zip(self.tiles, factors, strict=True))


def draw_tile(powers: dict[int, int], count: int, most_innermost: int, draws: random.Random) -> list[int]:
    """Draw `count` factors of the product of some prime powers as TVM's `SamplePerfectTile` does.

    All ways to share out the exponent of each prime are equally likely, but for those whose last factor is
    above `most_innermost`.
    """
    while True:
        tile = [1] * count
        for prime, exponent in powers.items():
            # Bars between stars: the places of all but the last end of a share.
            bars = sorted(draws.sample(range(exponent + count - 1), count - 1))
            shares = (after - before - 1 for before, after in pairwise((-1, *bars, exponent + count - 1)))
            tile = [factor * prime**share for factor, share in zip(tile, shares, strict=True)]
        if tile[-1] <= most_innermost:
            return tile


def prime_powers(number: int) -> dict[int, int]:
    """The exponent of each prime in a positive number; what has no small factors counts as a prime."""
    powers = Counter[int]()
    divisor = 2
    while divisor <= _LARGEST_DIVISOR and divisor * divisor <= number:
        while number % divisor == 0:
            powers[divisor] += 1
            number //= divisor
        divisor += 1
    if number > 1:
        powers[number] += 1
    return powers


def _note(step: Any) -> str:
    """What an instruction notes on a block; empty for all others."""
    return str(step.attrs[0]) if step.kind.name == "Annotate" else ""


#: Targets that design spaces are made for. One a family, not one a device: what a device can do is left to
#: code generation, so every device of the family is asked for the same programs. `num-cores` scales only
#: the extent of the parallel loop (MetaSchedule: 16 jobs a core).
SPACE_TARGETS: dict[Family, dict[str, Any]] = {
    Family.CPU: {"kind": "llvm", "num-cores": 1},
    Family.GPU: {
        "kind": "cuda",
        "arch": "sm_80",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
}

#: Draws in a row that show no program for the first time after which the space counts as used up. CPU draws
#: nearly all pass; a tenth to a half of CUDA draws passes the post-processors.
_BARREN_SAMPLES = 600
#: Draws in a row that pass and show nothing new, after which it counts as used up: so many for each program
#: that was seen, and at least. Where programs are few, each comes up often.
_REPEATS_EACH, _LEAST_REPEATS = 10, 100
#: Draws in all, of some 7 ms each: whoever asked does not wait for minutes.
_MOST_TRIES = 10_000
#: Mutations in a row without a new candidate after which the neighbourhood counts as used up.
_BARREN_DRAWS = 300
_MOST_SEED = 2**31 - 1


@dataclass(slots=True)
class Proposal:
    """Distinct fresh candidates of one workload, and what it took to find them."""

    workload_id: WorkloadId
    origin: str
    exclude: Collection[CandidateId]
    candidates: list[Candidate] = field(default_factory=list)
    #: Structural hashes of the programs that are known.
    programs: set[int] = field(default_factory=set)
    #: Draws made, and parents that were refused.
    tries: int = 0
    #: Draws that a mutator or post-processor refused, and parents that do not replay.
    refused: int = 0
    #: Draws whose program was known already.
    repeated: int = 0
    #: Draws since a program was seen for the first time, and those of them that passed.
    barren: int = 0
    passed: int = 0

    def is_used_up(self, most: int) -> bool:
        """Whether draws repeat what is known: `most` in a row, or fewer that passed if programs are few."""
        repeats = max(_LEAST_REPEATS, _REPEATS_EACH * len(self.programs))
        return self.barren >= most or self.passed >= repeats

    def take(self, schedule: Any) -> None:
        """Count one draw: a finished schedule, or None if it was refused."""
        import tvm_ffi

        self.tries += 1
        self.barren += 1
        if schedule is None:
            self.refused += 1
            return
        self.passed += 1
        program = tvm_ffi.structural_hash(schedule.mod)
        candidate = None
        if program not in self.programs:
            self.programs.add(program)
            self.barren = self.passed = 0
            trace = canonical_json(plain_json(schedule.trace.as_json()))
            candidate = Candidate(workload_id=self.workload_id, trace=trace, origin=self.origin)
        if candidate is None or candidate.candidate_id in self.exclude:
            self.repeated += 1
        else:
            self.candidates.append(candidate)


def plain_json(value: Any) -> Any:
    """Turn the JSON-like value of a TVM object into Python lists, numbers and text."""
    if value is None:
        return None
    for kind in (bool, int, float, str):
        # TVM's own str, int and float subclasses become the plain types.
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "value"):  # IntImm, FloatImm
        return plain_json(value.value)
    if hasattr(value, "items"):
        return {str(key): plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value]


class DesignSpace:
    """The design space of one workload for one family."""

    def __init__(self, workload: Workload, family: Family) -> None:
        load_tensor_intrinsics(family)
        import tvm
        from tvm.s_tir.meta_schedule import TuneContext

        self._workload = workload
        self._module = own_module(workload)
        context = TuneContext(
            mod=self._module,
            target=tvm.target.Target(SPACE_TARGETS[family]),
            space_generator="post-order-apply",
            search_strategy="replay-trace",
            task_name=workload.name,
            num_threads=1,
            rand_state=1,
        )
        self._spaces = [schedule.trace for schedule in context.generate_design_space()]
        if family is Family.CPU:
            self._spaces += [other for space in self._spaces if (other := self._reordered(space)) is not None]
        self._tiles = [ThreadTiles.of_space(space) for space in self._spaces]
        self._space_steps = [plain_json(space.as_json())[0] for space in self._spaces]
        self._comparable = [comparable(steps) for steps in self._space_steps]
        generator = context.space_generator
        self._postprocs = list(generator.postprocs)
        chances = generator.mutator_probs
        self._mutators = list(chances)
        self._mutator_chances = [float(plain_json(chances[mutator])) for mutator in self._mutators]
        self._context = context  # post-processors and mutators keep a weak view of it

    def _reordered(self, space: Any) -> Any:
        """The design space with its outermost loops in another order; None if there is none."""
        steps, decisions = plain_json(space.as_json())
        if (tiled := tiled_block(steps)) is None:
            return None
        other = reordered(steps, tiled[0], _indexing_loops(self._module, tiled[1]))
        return None if other is None else self._replayed(other, decisions)

    def sample(self, count: int, *, seed: int, exclude: Collection[CandidateId] = ()) -> Proposal:
        """Draw up to `count` distinct random candidates, none of them in `exclude`.

        Distinct means distinct programs: two traces that give the same scheduled module count once.
        The same seed gives the same draws; `exclude` only filters them, so a question that excludes what the
        seed gave before passes through all of that again.
        """
        from tvm.s_tir.schedule import Trace

        draws = random.Random(f"{seed}/{self._workload.workload_id}")
        proposal = Proposal(self._workload.workload_id, "random", exclude)
        while (
            len(proposal.candidates) < count
            and not proposal.is_used_up(_BARREN_SAMPLES)
            and proposal.tries < _MOST_TRIES
        ):
            place = draws.randrange(len(self._spaces))
            tiles = self._tiles[place]
            # Decisions that are left out are sampled afresh from the schedule's seed.
            trace = Trace(self._spaces[place].insts, tiles.draw(draws) if tiles else {})
            proposal.take(self._finish(trace, draws.randrange(1, _MOST_SEED)))
        return proposal

    def evolve(
        self,
        parents: Sequence[str],
        count: int,
        *,
        seed: int,
        exclude: Collection[CandidateId] = (),
    ) -> Proposal:
        """Draw up to `count` distinct candidates that differ from a parent by one mutation.

        MetaSchedule's mutators of the family are drawn with its own probabilities (tile sizes mostly), and
        parents with a chance of one over their rank. Parents that do not replay, or belong to no design
        space of this family, are skipped and counted as refused.

        Args:
            parents: Traces (JSON text) of good candidates of this workload, best first.
            count: Candidates wanted; fewer are returned once the parents' neighbourhood is used up.
            seed: The same seed and parents give the same draws.
            exclude: Candidates not to return. Programs equal to a parent's never are.
        """
        from tvm_ffi import get_global_func, structural_hash

        # `Mutator.apply` draws its own random seed; this is the function beneath it.
        mutate = get_global_func("s_tir.meta_schedule.MutatorApply")
        draws = random.Random(f"evolve/{seed}/{self._workload.workload_id}")
        proposal = Proposal(self._workload.workload_id, "evolved", exclude)
        bases: list[Any] = []
        chances: list[float] = []
        for rank, parent in enumerate(dict.fromkeys(parents), start=1):
            base = self._before_postprocs(parent)
            schedule = None if base is None else self._finish(base, 1)
            if schedule is None:
                proposal.take(None)
                continue
            proposal.programs.add(structural_hash(schedule.mod))
            bases.append(base)
            chances.append(1 / rank)
        while bases and len(proposal.candidates) < count and not proposal.is_used_up(_BARREN_DRAWS):
            [base] = draws.choices(bases, chances)
            [mutator] = draws.choices(self._mutators, self._mutator_chances)
            mutant = mutate(mutator, base, draws.randrange(1, _MOST_SEED))
            schedule_seed = draws.randrange(1, _MOST_SEED)
            proposal.take(None if mutant is None else self._finish(mutant, schedule_seed))
        return proposal

    def derive(self, traces: Sequence[str]) -> Derivation:
        """Make candidates of our own from the decisions of imported ones.

        Of an imported trace only the decisions are used, on the design space of ours whose instructions it
        begins with; then our own post-processors run. So what comes out is a member of our design space, with
        a trace and an id of its own, whatever came in.

        Args:
            traces: Imported traces (JSON text) of a workload that claims to be this one.
        """
        candidates: dict[CandidateId, Candidate] = {}
        refused: Counter[str] = Counter()
        for trace in traces:
            try:
                candidate = self._derived(trace)
            except TraceRefusedError as error:
                refused[error.reason] += 1
            else:
                candidates.setdefault(candidate.candidate_id, candidate)
        return Derivation(tuple(candidates.values()), dict(refused))

    def _derived(self, trace: str) -> Candidate:
        space, decisions = match(self._comparable, trace)
        steps = self._space_steps[space]
        base = self._replayed(steps, decisions)
        schedule = None if base is None else self._finish(base, 1)
        if schedule is None:
            raise TraceRefusedError("its decisions make no program in our design space")
        mine = plain_json(schedule.trace.as_json())
        # TVM mends a decision that does not fit its loop: that would be another candidate under this name.
        if [decision for decision in mine[1] if decision[0] < len(steps)] != decisions:
            raise TraceRefusedError("its decisions do not fit our loops")
        return Candidate(workload_id=self._workload.workload_id, trace=canonical_json(mine), origin=DERIVED)

    def _finish(self, trace: Any, seed: int) -> Any:
        """Apply a trace and the post-processors to the workload; None if it is refused."""
        from tvm.s_tir.schedule import Schedule

        schedule = Schedule(self._module, seed=seed, error_render_level="none")
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            finished = all(postproc.apply(schedule) for postproc in self._postprocs)
        except Exception:  # a decision that does not fit the ones before it
            return None
        return schedule if finished else None

    def _before_postprocs(self, parent: str) -> Any:
        """Cut a trace to the part that came from a design space; None if it does not replay.

        Traces of this project hold no mark where the post-processors begin, so `remove_postproc` leaves
        them in. But a trace begins with the instructions of its design space, all but the decisions.
        """
        try:
            steps, decisions = read_trace(parent)
        except TraceRefusedError:
            return None
        length = max((len(space) for space in self._space_steps if steps[: len(space)] == space), default=0)
        return self._replayed(steps[:length], [decision for decision in decisions if decision[0] < length])

    def _replayed(self, steps: list[Any], decisions: list[Any]) -> Any:
        """The trace of instructions of ours with decisions; None if there are none, or they do not fit."""
        from tvm.s_tir.schedule import Schedule, Trace

        schedule = Schedule(self._module, error_render_level="none")
        try:
            Trace.apply_json_to_schedule([steps, decisions], schedule)
        except Exception:  # whatever else it holds, it is no parent for this space
            return None
        return schedule.trace if steps else None


def _indexing_loops(module: Any, block_name: str) -> list[set[int]]:
    """Of each operand of a block: places of the block's loops that index it."""
    from tvm.s_tir import Schedule
    from tvm.tirx.analysis import undefined_vars

    schedule = Schedule(module)
    block = schedule.get(schedule.get_sblock(block_name))
    places = {loop.var: place for place, loop in enumerate(block.iter_vars)}
    return [
        {places[var] for extent in read.region for var in undefined_vars(extent.min) if var in places}
        for read in block.reads
    ]
