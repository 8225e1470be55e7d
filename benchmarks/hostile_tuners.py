"""Hostile lines of Ansor (v0.2 to v0.6) and AutoTVM (0.2): honest in form, with numbers of any size.

Called by `benchmarks.hostile_files`.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from benchmarks.hostile_values import number, target_text, text, value, whole

#: Seconds since 1970 of the first line.
_START = 1_700_000_000
_SCOPES = ("shared", "local", "global", "wmma.accumulator")
_FUNCTIONS = (
    "conv2d_NCHWc.x86",
    "conv2d_nchw.cuda",
    "conv2d_nhwc.x86",
    "conv2d_nchw_spatial_pack.arm_cpu",
    "conv2d_nchw_winograd.cuda",
    "conv2d_nhwc_winograd_without_weight_transform.cuda",
    "conv2d_transpose_nchw.x86",
    "conv3d_ncdhw.x86",
    "conv1d_ncw.x86",
    "group_conv2d_nchw.cuda",
    "depthwise_conv2d_NCHWc.x86",
    "depthwise_conv2d_nchw.cuda",
    "dense_nopack.x86",
    "dense_pack.x86",
    "dense_large_batch.gpu",
    "batch_matmul.x86",
    "ansor_steps",
    "no_such_template",
)
_KNOBS = (
    "tile_ic",
    "tile_oc",
    "tile_f",
    "tile_y",
    "tile_x",
    "tile_k",
    "tile_b",
    "tile_inner",
    "reorder_0",
    "ann_reduce",
    "ann_spatial",
    "unroll_kw",
    "auto_unroll_max_step",
    "SP_0_1",
    "SP_3_2",
)
_WORDS = ("none", "unroll", "vec", "parallel")


def result(rng: Random, line: int) -> list[Any]:
    """`[costs, error_no, all_cost, timestamp]`; the costs differ from line to line."""
    if rng.random() < 0.1:
        return [[1e10], rng.randrange(1, 9), 1.0, _START + line]
    costs = [1e-4 * (1 + rng.random()) for _ in range(rng.choice((1, 3)))]
    if rng.random() < 0.08:
        costs[0] = number(rng)
    return [costs, 0, 1.5, _START + line]


def size(rng: Random) -> Any:
    """An extent: mostly a plain one."""
    return rng.choice((1, 3, 7, 16, 32, 64, 224, 1000)) if rng.random() < 0.85 else whole(rng)


def _place(rng: Random) -> Any:
    return rng.randrange(12) if rng.random() < 0.97 else whole(rng)


def _places(rng: Random) -> list[Any]:
    if rng.random() < 0.3:
        return [_place(rng) for _ in range(rng.randrange(6))]
    start = rng.randrange(3)
    return list(range(start, start + rng.choice((0, 1, 2, 3, 8))))


def ansor_step(rng: Random, tag: str) -> list[Any]:
    """One transform step of a kind."""
    stage, loop = _place(rng), _place(rng)
    if tag in ("AN", "CA", "RF"):
        return [tag, stage, loop, _place(rng)]
    if tag in ("CI", "CR"):
        return [tag, stage]
    if tag == "PR":
        words = (f"auto_unroll_max_step${size(rng)}", "debug_skip_region", text(rng)[:200])
        return [tag, stage, loop, rng.choice(words)]
    if tag in ("FU", "RE"):
        return [tag, stage, _places(rng)]
    if tag == "SP":
        lengths = [size(rng) for _ in range(rng.choice((1, 1, 3, 3, 40)))]
        return [tag, stage, loop, size(rng), lengths, *rng.choice(([1], [0], [True], []))]
    if tag == "FSP":
        return [tag, stage, loop, _place(rng), rng.choice((1, 2, 4, whole(rng)))]
    if tag == "FFSP":
        return [tag, stage, loop, _places(rng), _place(rng), rng.choice((0, 1))]
    if tag == "SA":
        return [tag, stage, loop, size(rng), size(rng)]
    if tag == "CHR":
        return [tag, stage, rng.choice(_SCOPES), _places(rng)]
    if tag == "CHW":
        return [tag, stage, rng.choice(_SCOPES)]
    return [tag, stage, whole(rng), text(rng)[:100]]


#: The fourteen steps that Ansor knows, and one that it does not.
STEPS = ("AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF", "XX")


def ansor_steps(rng: Random) -> list[Any]:
    """Steps of one schedule; a few schedules are far longer than any search makes."""
    count = rng.choice((5, 12, 12, 30, 30, 500 if rng.random() < 0.1 else 60))
    tags = [rng.choice(STEPS) for _ in range(count)]
    if rng.random() < 0.15:  # one kind over and over: what each step adds to, the next one walks over
        tags = [rng.choice(STEPS)] * count
    return [ansor_step(rng, tag) for tag in tags]


def ansor_line(rng: Random, family: str, line: int, marker: str = "") -> dict[str, Any]:
    """One line of Ansor; earlier versions lack the last fields of a task."""
    shapes = [[size(rng) for _ in range(rng.choice((2, 3, 4)))] for _ in range(3)]
    name = rng.choice(("0123456789abcdef" * 2, "matmul_auto_scheduler", f"{rng.getrandbits(128):032x}"))
    key: Any = [name, *shapes] if rng.random() < 0.85 else [text(rng), value(rng)]
    task: list[Any] = [json.dumps(key), target_text(rng, family)]
    version = rng.choice(("v0.2", "v0.3", "v0.4", "v0.5", "v0.6"))
    later = [[8, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    if rng.random() < 0.1:
        later[0] = [whole(rng) for _ in range(8)]
    task += later[: {"v0.2": 0, "v0.3": 1, "v0.4": 2, "v0.5": 3}.get(version, 4)]
    steps = ansor_steps(rng)
    if marker:
        steps.append(["PR", 0, 0, f"import_llvm${marker}"])
    made: dict[str, Any] = {"i": [task, [[], steps]], "r": result(rng, line), "v": version}
    if rng.random() < 0.05:
        del made["v"]
    return made


def _tensor(rng: Random, dimensions: int) -> list[Any]:
    return ["TENSOR", [size(rng) for _ in range(dimensions)], rng.choice(("float32", "int8", text(rng)[:50]))]


def _arguments(rng: Random, function: str) -> list[Any]:
    if function == "ansor_steps":
        return [ansor_steps(rng)]
    dimensions = {"dense": 2, "batch": 3, "conv1d": 3, "conv3d": 5}.get(function.split("_")[0], 4)
    if "NCHWc" in function:
        dimensions = rng.choice((4, 5))
    tensors = [_tensor(rng, dimensions), _tensor(rng, rng.choice((dimensions, dimensions + 1)))]
    pair = rng.choice(([1, 1], [2, 2], 1, [number(rng), 1], [0, 0]))
    padding = rng.choice(([1, 1, 1, 1], "SAME", "VALID", [0, 0], number(rng)))
    return [*tensors, pair, padding, [1, 1], "NCHW", "NCHW", "float32"]


def entity(rng: Random) -> list[Any]:
    """The knobs of one AutoTVM configuration."""
    knobs: list[Any] = []
    for _ in range(rng.choice((1, 3, 3, 6, 12, 60))):
        name, kind = rng.choice(_KNOBS), rng.choice(("sp", "sp", "sp", "re", "an", "ot", "xx"))
        chosen: Any = number(rng) if rng.random() < 0.3 else rng.choice((0, 16, 512, True))
        if kind == "sp":
            chosen = [size(rng) for _ in range(rng.choice((2, 4)))]
            if rng.random() < 0.5:
                chosen[0] = -1
        elif kind == "re":
            chosen = _places(rng)
        elif kind == "an":
            chosen = [rng.choice(_WORDS) for _ in range(rng.randrange(4))]
        knobs.append([name, kind, chosen])
    return knobs


def autotvm_line(rng: Random, family: str, line: int, marker: str = "") -> dict[str, Any]:
    """One line of AutoTVM 0.2."""
    function = rng.choice(_FUNCTIONS)
    knobs = entity(rng)
    if marker:
        knobs.append(["import_llvm", "ot", marker])
    return {
        "input": [target_text(rng, family), function, _arguments(rng, function), {}],
        "config": {"index": line, "code_hash": None, "entity": knobs},
        "result": result(rng, line),
        "version": 0.2,
        "tvm_version": rng.choice(("0.6.0", "0.10.0", text(rng)[:60])),
    }
