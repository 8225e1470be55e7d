"""How far Ansor's records agree with the interpreter of the canonical language.

Ansor records the extent of every loop that it splits. Where the steps before, or another record of the same
workload, determine that loop, the two must be equal: that is what makes "a split is a split" more than a
hope. Called by tests and benchmarks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.transfer.language.interpreted_loops import LoopNest, Mismatch
from transfer.language.ansor import AnsorReader
from transfer.language.primitives import CREATED, Kind, Primitive

_SPLITS = frozenset({Kind.SP, Kind.FSP, Kind.FFSP})
#: Contradictions kept as examples.
_EXAMPLES = 20


@dataclass(slots=True)
class Agreement:
    """Counts over many records, by kind of step.

    A split is determined where the extent of its loop was known before the split; any other step where all
    the loops it makes or places are known. Loops of a stage that is computed at another one are never known.
    """

    traces: int = 0
    determined: Counter[Kind] = field(default_factory=Counter)
    undetermined: Counter[Kind] = field(default_factory=Counter)
    mismatched: Counter[Kind] = field(default_factory=Counter)
    #: Steps that the reader made UNK, by reason.
    unknown: Counter[str] = field(default_factory=Counter)
    #: The first contradictions, with the text of their trace.
    examples: list[tuple[str, Mismatch]] = field(default_factory=list)


def agreement(traces: Iterable[str], counts: Agreement | None = None) -> Agreement:
    """Interpret the records of one workload and compare.

    Args:
        traces: Steps of candidates of the same workload. The first that splits every axis of a stage
            determines the extents of that stage for all that follow.
        counts: What to add to; a new one if not given.

    Returns:
        The counts, `counts` itself if given.

    Raises:
        TraceError: A text is no list of steps.
    """
    counts = Agreement() if counts is None else counts
    reader = AnsorReader()
    initial: dict[int, tuple[int, ...]] = {}
    for trace in traces:
        steps = reader.read(trace)
        _compare(trace, steps, initial, counts)
        for stage, extents in axis_extents(steps).items():
            initial.setdefault(stage, extents)
    counts.unknown.update(reader.unknown)
    return counts


def axis_extents(steps: Sequence[Primitive]) -> dict[int, tuple[int, ...]]:
    """Extents of the axes of every original stage whose axes are all split, as the splits record them."""
    splits: dict[int, dict[int, int]] = {}
    pieces: Counter[int] = Counter()
    found: dict[int, tuple[int, ...]] = {}
    gone: set[int] = set()
    for step in steps:
        stage = step.stage
        if stage < 0 or stage >= CREATED or stage in gone:
            continue
        if step.kind is Kind.SP and step.numbers[1] > 0:
            axes = splits.setdefault(stage, {})
            pieces[stage] += len(step.numbers) - 2
            if step.numbers[0] not in axes:
                axes[step.numbers[0]] = step.numbers[1]
                continue
        elif step.kind is Kind.RE:
            axes = splits.get(stage, {})
            # Every loop is a piece of a recorded split, so these are all axes.
            if len(step.loops) == pieces[stage] and sorted(axes) == list(range(len(axes))):
                found[stage] = tuple(axes[axis] for axis in range(len(axes)))
        if step.kind not in (Kind.CHW, Kind.CHR, Kind.PR, Kind.AN):
            gone.add(stage)
    return found


def _compare(
    trace: str, steps: Sequence[Primitive], initial: Mapping[int, Sequence[int]], counts: Agreement
) -> None:
    nest = LoopNest(initial)
    known_splits: Counter[Kind] = Counter()
    splits: Counter[Kind] = Counter()
    for step in steps:
        if step.kind in _SPLITS:
            splits[step.kind] += 1
            known_splits[step.kind] += _is_known(nest, step)
        nest.apply(step)
    counts.traces += 1
    for kind in nest.determined.keys() | nest.inferred.keys():
        known = known_splits[kind] if kind in _SPLITS else nest.determined[kind]
        total = splits[kind] if kind in _SPLITS else known + nest.inferred[kind]
        counts.determined[kind] += known
        counts.undetermined[kind] += total - known
    for mismatch in nest.mismatches:
        counts.mismatched[mismatch.kind] += 1
        if len(counts.examples) < _EXAMPLES:
            counts.examples.append((trace, mismatch))


def _is_known(nest: LoopNest, step: Primitive) -> bool:
    """Whether the extent of the loop that a step splits follows from what came before."""
    stage = nest.stages.get(step.stage)
    if stage is None or stage.at is not None or not step.loops or step.loops[0] >= len(stage.loops):
        return False
    loop = stage.loops[step.loops[0]]
    return loop.extent > 0 and not loop.inferred
