"""Hostile MetaSchedule databases: workloads, and traces of every instruction kind of TVM 0.27.

A trace is `[instructions, decisions]`. Those that would run code if they were replayed carry a marker: the
path of a folder that the code makes. Called by `benchmarks.hostile_files`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.hostile_attacks import annotation, index_map
from benchmarks.hostile_modules import workload_line
from benchmarks.hostile_tuners import size
from benchmarks.hostile_values import number, target_object, target_text, text, value, whole

#: Instructions that give no new variables: (inputs, attributes); letters stand for what `_item` makes.
_PLAIN: dict[str, tuple[str, str]] = {
    "AnnotateBufferAccess": ("bnm", "t"),
    "Bind": ("l", "h"),
    "ComputeAt": ("blf", "i"),
    "ComputeInline": ("b", ""),
    "DecomposePadding": ("bl", ""),
    "EnterPostproc": ("", ""),
    "FuseReductionEpilogue": ("bb", ""),
    "PadEinsum": ("b", "L"),
    "Parallel": ("l", ""),
    "ReorderBlockIterVar": ("b", "L"),
    "ReverseComputeAt": ("blf", "i"),
    "ReverseComputeInline": ("b", ""),
    "RollingBuffer": ("b", "nf"),
    "SetScope": ("b", "ns"),
    "StorageAlign": ("b", "nnnn"),
    "Tensorize": ("l", "tf"),
    "TransformBlockLayout": ("b", "m"),
    "TransformLayout": ("bm", "nnNf"),
    "Unannotate": ("b", "k"),
    "Unroll": ("l", ""),
    "UnsafeHideBufferAccess": ("b", "tL"),
    "UnsafeSetDType": ("b", "nt"),
    "Vectorize": ("l", ""),
}
#: Instructions that give blocks, loops or values: (inputs, attributes, letter of the outputs).
_MAKING: dict[str, tuple[str, str, str]] = {
    "Blockize": ("lf", "", "b"),
    "CacheIndex": ("b", "sn", "B"),
    "CacheInplace": ("b", "ns", "B"),
    "CacheRead": ("bB", "ns", "b"),
    "CacheWrite": ("bB", "ns", "b"),
    "DecomposeReduction": ("bl", "", "b"),
    "GetBlock": ("", "Tt", "b"),
    "GetChildBlocks": ("b", "", "B"),
    "GetConsumers": ("b", "", "B"),
    "GetLoops": ("b", "", "L"),
    "GetOutputBlocks": ("b", "", "B"),
    "GetProducers": ("b", "", "B"),
    "GetSBlock": ("", "Tt", "b"),
    "RFactor": ("l", "n", "b"),
    "ReIndex": ("b", "nn", "b"),
    "ReadAt": ("lb", "ns", "b"),
    "ReindexCacheRead": ("bm", "ns", "b"),
    "ReindexCacheWrite": ("bm", "ns", "b"),
    "WriteAt": ("lb", "ns", "b"),
    "AddUnitLoop": ("l", "", "l"),
    "Split": ("lvvN", "f", "L"),
    "LoopPartition": ("lvN", "f", "L"),
    "Fuse": ("LL", "f", "l"),
    "Merge": ("LL", "", "l"),
    "SampleCategorical": ("", "LL", "v"),
    "SampleComputeLocation": ("b", "", "v"),
    "SamplePartitionedTile": ("l", "nnnn", "V"),
    "SamplePerfectTile": ("l", "nn", "V"),
    "NoSuchInstruction": ("bl", "nt", "L"),
}
#: Every kind that is made here, `Reorder` and `Annotate` included.
KINDS = tuple(sorted([*_PLAIN, *_MAKING, "Reorder", "Annotate"]))
_BLOCKS = ("matmul", "C", "root", "conv2d_nchw", "pad_temp")
_DTYPES = ("float32", "float16", "int8")
_SCOPES = ("global", "local", "shared", "shared.dyn", "wmma.matrix_a")
_THREADS = ("blockIdx.x", "threadIdx.x", "vthread.x", "threadIdx.q")


class Trace:
    """A trace under construction.

    Args:
        rng: What is drawn from.
        marker: Folder that code in it would make; empty for none.
    """

    def __init__(self, rng: Random, marker: str = "") -> None:
        self._rng, self._marker = rng, marker
        self._names: dict[str, list[str]] = {"b": [], "l": [], "v": []}
        self._count = 0
        self.instructions: list[list[Any]] = []
        self.decisions: list[list[Any]] = []

    def fresh(self, letter: str, count: int = 1) -> list[str]:
        """Names of new variables."""
        made = [f"{letter}{self._count + place}" for place in range(count)]
        self._count += count
        self._names[letter] += made
        return made

    def any(self, letter: str) -> str:
        """Name of a variable: known, or now and then of nothing."""
        known = self._names[letter]
        if not known or self._rng.random() < 0.04:
            return self._rng.choice((f"{letter}9999", "", "None", text(self._rng)[:50]))
        # What was made last is used most.
        return known[-1 - min(len(known) - 1, int(self._rng.expovariate(0.3)))]

    def add(self, kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str]) -> None:
        """Add an instruction."""
        self.instructions.append([kind, inputs, attributes, outputs])

    def decide(self, decision: Any) -> None:
        """Add the decision of the last instruction."""
        self.decisions.append([len(self.instructions) - 1, decision])

    def _items(self, letters: str) -> list[Any]:
        return [self._item(letter) for letter in letters]

    def _item(self, letter: str) -> Any:
        rng = self._rng
        if letter in "blv":
            return self.any(letter)
        if letter in "BL":
            return [self.any(letter.lower()) for _ in range(rng.randrange(4))]
        made: dict[str, Callable[[], Any]] = {
            "n": lambda: number(rng) if rng.random() < 0.3 else rng.randrange(4),
            "i": lambda: rng.choice((-1, -2, 0, 1)),
            "f": lambda: rng.choice((True, False, 0, 1)),
            "N": lambda: None,
            "s": lambda: rng.choice(_SCOPES),
            "h": lambda: rng.choice(_THREADS),
            "t": lambda: rng.choice(("main", "dot_16x4_vnni", text(rng)[:300])),
            "T": lambda: rng.choice(_BLOCKS) if rng.random() < 0.9 else text(rng)[:300],
            "k": lambda: annotation(rng, self._marker)[0],
            "m": lambda: index_map(rng, self._marker),
        }
        return made[letter]()

    def step(self, kind: str) -> None:
        """Add an instruction of a kind."""
        rng = self._rng
        if kind == "Annotate":
            key, what = annotation(rng, self._marker)
            return self.add(kind, [self.any(rng.choice("lb")), what], [key], [])
        if kind == "Reorder":
            return self.add(kind, [self.any("l") for _ in range(rng.choice((2, 3, 6)))], [], [])
        if kind in _PLAIN:
            inputs, attributes = _PLAIN[kind]
            return self.add(kind, self._items(inputs), self._items(attributes), [])
        inputs, attributes, letter = _MAKING[kind]
        made = self._items(inputs)
        if letter == "l" and made and isinstance(made[0], list):
            made = [self.any("l") for _ in range(rng.choice((1, 2, 2, 4)))]
        if kind == "SampleCategorical":
            choices = [size(rng) for _ in range(rng.choice((1, 4, 4)))]
            self.add(kind, [], [choices, [0.25] * len(choices)], self.fresh("v"))
            return self.decide(rng.randrange(len(choices)) if rng.random() < 0.95 else whole(rng))
        count = 1 if letter.islower() else rng.choice((1, 2, 3, 4, 4))
        self.add(kind, made, self._items(attributes), self.fresh(letter.lower(), count))
        if letter == "V" and rng.random() < 0.97:
            self.decide([size(rng) for _ in range(count)])
        elif kind == "SampleComputeLocation" and rng.random() < 0.97:
            self.decide(rng.choice((-2, -1, 0, 1, 5, 10**6, whole(rng))))

    def begin(self) -> None:
        """Add what every schedule begins with: a block and its loops."""
        name = self._rng.choice(_BLOCKS[:2])
        self.add("GetSBlock", [], [name, "main"], self.fresh("b"))
        self.add("GetLoops", [self._names["b"][-1]], [], self.fresh("l", self._rng.choice((1, 3, 3, 3, 7))))

    def done(self) -> list[Any]:
        """The trace; now and then a decision is lost or of another form."""
        if self.decisions and self._rng.random() < 0.1:
            place = self._rng.randrange(len(self.decisions))
            self.decisions[place] = [self._rng.choice((number(self._rng), place)), value(self._rng, 1)]
        return [self.instructions, self.decisions]


def mixed(rng: Random, marker: str) -> list[Any]:
    """Some dozen instructions of any kind."""
    trace = Trace(rng, marker)
    trace.begin()
    for _ in range(rng.choice((3, 8, 15, 30))):
        trace.step(rng.choice(KINDS))
    if marker:
        trace.step(rng.choice(("TransformLayout", "ReindexCacheRead", "ReindexCacheWrite", "Annotate")))
    return trace.done()


def repeated(rng: Random, marker: str) -> list[Any]:
    """One kind hundreds of times: what each instruction adds to, the next one walks over."""
    trace = Trace(rng, marker)
    trace.begin()
    kinds = [rng.choice(KINDS), *rng.choice(([], [rng.choice(KINDS)]))]
    for _ in range(rng.choice((30, 30, 80, 400))):
        trace.step(rng.choice(kinds))
    return trace.done()


def fused(rng: Random, marker: str) -> list[Any]:
    """A loop that is fused with itself, or split by sampled factors, over and over: extents multiply."""
    trace = Trace(rng, marker)
    trace.begin()
    for _ in range(rng.choice((5, 12, 40))):
        loop = trace.any("l")
        if rng.random() < 0.5:
            trace.add("Fuse", [loop] * rng.choice((2, 2, 16)), [1], trace.fresh("l"))
            continue
        parts = rng.choice((2, 4, 4, 40, 200))
        sampled = trace.fresh("v", parts)
        trace.add("SamplePerfectTile", [loop], [parts, 64], sampled)
        trace.decide([size(rng) for _ in range(parts)])
        trace.add("Split", [loop, *sampled], [1], trace.fresh("l", parts))
    return trace.done()


def located(rng: Random, marker: str) -> list[Any]:
    """Many sampled compute locations, each of which compiles what follows anew."""
    trace = Trace(rng, marker)
    trace.begin()
    for _ in range(rng.choice((3, 8, 40))):
        sampled = trace.fresh("v")
        trace.add("SampleComputeLocation", [trace.any("b")], [], sampled)
        trace.decide(rng.choice((-2, -1, 0, 1, 2, 3)))
        trace.add("ComputeAt", [trace.any("b"), sampled[0], 1], [-1], [])
        trace.step(rng.choice(("CacheWrite", "CacheRead", "GetConsumers", "GetLoops")))
    return trace.done()


TRACES: tuple[Callable[[Random, str], list[Any]], ...] = (*[mixed] * 12, repeated, fused, located)


def trace(rng: Random, marker: str = "") -> list[Any]:
    """A trace of any kind."""
    return rng.choice(TRACES)(rng, marker)


def run_secs(rng: Random) -> Any:
    """Seconds of a record: a list, null, or the mark of a failure."""
    if rng.random() < 0.15:
        return rng.choice((None, [1e10], [], [number(rng)], value(rng, 1)))
    return [1e-4 * (1 + rng.random()) for _ in range(rng.choice((1, 3)))]


def arguments(rng: Random) -> list[Any]:
    """Descriptions of a program's arguments."""
    made: list[Any] = []
    for _ in range(rng.choice((3, 3, 3, 1, 12))):
        shape = [size(rng) for _ in range(rng.choice((1, 2, 2, 4, 4, 40)))]
        made.append(["TENSOR", rng.choice(_DTYPES) if rng.random() < 0.95 else text(rng)[:300], shape])
    return made


def record_line(rng: Random, family: str, workloads: int, marker: str) -> list[Any]:
    """One tuning record of one of some workloads.

    Args:
        rng: What is drawn from.
        family: `cpu` or `gpu`.
        workloads: Workloads of the database.
        marker: Folder that code in the trace would make; empty for none.
    """
    index = rng.randrange(max(1, workloads)) if rng.random() < 0.95 else number(rng)
    if rng.random() < 0.85:
        target: Any = target_object(rng, family)
    else:
        target = target_text(rng, family)
    made = trace(rng, marker)
    return [index, [made, run_secs(rng), target, arguments(rng)]]


def workload_lines(rng: Random, count: int) -> list[Any]:
    """Workload lines; some pretend to be the same program."""
    hashes = [rng.getrandbits(64) for _ in range(max(1, count // 2))]
    lines: list[Any] = []
    for _ in range(count):
        structural_hash = rng.choice(hashes)
        line: Any = workload_line(rng, structural_hash)
        if rng.random() < 0.05:
            line[0] = rng.choice((text(rng)[:200], str(2**64), "-1", "0" * 50, "\u00b2"))
        lines.append(line)
    return lines
