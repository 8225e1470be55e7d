"""Parts of a MetaSchedule trace that run code where a trace is replayed as it came.

Two ways in were seen to work with TVM 0.27: an index map whose condition calls a function of the C library,
and an annotation that links foreign LLVM IR over a function of the mathematical library. What runs leaves a
marker: a folder of a known name, or a process that ends with `EXIT_CODE`. Called by the makers of hostile
traces and by `benchmarks.hostile_live`. Needs no TVM.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from benchmarks.hostile_values import NUMBERS, text, value

#: Exit code of a process that was made to end by foreign code.
EXIT_CODE = 113
#: Permissions of the folder that foreign code makes: 0700. A file would be left open by every call.
_MODE = 448
#: Annotations that MetaSchedule, TVM's lowering or its code generation look at.
_KEYS = (
    "meta_schedule.tiling_structure",
    "meta_schedule.parallel",
    "meta_schedule.vectorize",
    "meta_schedule.unroll_explicit",
    "meta_schedule.auto_tensorize",
    "meta_schedule.cooperative_fetch",
    "meta_schedule.random_compute_producer",
    "meta_schedule.layout_rewrite_preproc",
    "pragma_auto_unroll_max_step",
    "pragma_unroll_explicit",
    "pragma_import_c",
    "pragma_tensor_core",
    "software_pipeline_stage",
    "double_buffer_scope",
)
_IMPORT_LLVM = "pragma_import_llvm"


def foreign_ir(marker: str) -> str:
    """LLVM IR of functions of the mathematical library that make the folder `marker`, or end the process."""
    raw = marker.encode()
    shown = "".join(chr(one) if chr(one).isalnum() or one in b"/._-" else f"\\{one:02X}" for one in raw)
    if marker:
        made = (
            f'@p = private unnamed_addr constant [{len(raw) + 1} x i8] c"{shown}\\00"\n'
            "declare i32 @mkdir(ptr, i32)\n"
        )
        call = f"%1 = call i32 @mkdir(ptr @p, i32 {_MODE})"
    else:
        made, call = "declare void @_exit(i32)\n", f"call void @_exit(i32 {EXIT_CODE})"
    for name in ("erff", "expf", "tanhf"):
        made += f"define float @{name}(float %a) {{ {call}  ret float %a }}\n"
    return made


def annotation(rng: Random, marker: str) -> tuple[str, Any]:
    """Key and value of an annotation; with a marker, foreign IR now and then."""
    if marker and rng.random() < 0.5:
        return _IMPORT_LLVM, f'"{foreign_ir(marker)}"'
    what: Any = rng.choice((1, 16, 512, '"SSRSRS"', [0, 1], "v0", value(rng, 1), rng.choice(NUMBERS)))
    return (rng.choice(_KEYS) if rng.random() < 0.9 else text(rng)[:300]), what


class _Map:
    """An index map under construction, in the JSON form that TVM saves objects in."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"type": "None"}]
        self.int32 = self.add("ir.PrimType", {"span": 0, "dtype": "int32"})

    def add(self, kind: str, data: Any) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def integer(self, number: Any) -> int:
        return self.add("ir.IntImm", {"span": 0, "ty": self.int32, "value": self.add("int", number)})

    def text(self, found: str) -> int:
        kind = self.add("ir.StringType", {"span": 0})
        return self.add("ir.StringImm", {"span": 0, "ty": kind, "value": self.add("ffi.String", found)})

    def variables(self, count: int) -> list[int]:
        made = []
        for place in range(count):
            name = self.add("ffi.String", f"i{place}")
            made.append(self.add("ir.Var", {"span": 0, "ty": self.int32, "name": name}))
        return made

    def call(self, function: str, arguments: list[int]) -> int:
        data = {
            "span": 0,
            "ty": self.int32,
            "op": self.add("ir.Op", "tirx.call_extern"),
            "args": self.add("ffi.Array", [self.text(function), *arguments]),
            "attrs": 0,
            "ty_args": self.add("ffi.Array", []),
        }
        return self.add("ir.Call", data)

    def map(self, before: list[int], after: list[int], inverse: int) -> int:
        arrays = self.add("ffi.Array", before), self.add("ffi.Array", after)
        data = {"initial_indices": arrays[0], "final_indices": arrays[1], "inverse_index_map": inverse}
        return self.add("tirx.IndexMap", data)

    def saved(self, root: int) -> str:
        whole = {"root_index": root, "nodes": self.nodes, "metadata": {"tvm_version": "0.27.0.post1"}}
        return json.dumps(whole, separators=(",", ":"))


def calling_map(
    marker: str, dimensions: int = 2, extent: int = 64, results: int = 0, mirrored: int = -1
) -> str:
    """An index map that calls the C library for each element, and keeps or mirrors one index by what it says.

    Args:
        marker: Folder that the call makes; empty where it ends the process with `EXIT_CODE`.
        dimensions: Indices of the map.
        extent: Extent of the index that is mirrored: the map stays inside the buffer, so TVM takes it.
        results: Indices that it gives; all if 0. With fewer there is no inverse map.
        mirrored: Which index that is; it becomes the last of the results.
    """
    made = _Map()
    before = made.variables(dimensions)
    if marker:
        called = made.call("mkdir", [made.text(marker), made.integer(_MODE)])
    else:
        called = made.call("_exit", [made.integer(EXIT_CODE)])
    span = {"span": 0, "ty": made.int32}
    turned = made.add("prim.Sub", {**span, "a": made.integer(extent - 1), "b": before[mirrored]})
    boolean = made.add("ir.PrimType", {"span": 0, "dtype": "bool"})
    test = made.add("prim.GT", {"span": 0, "ty": boolean, "a": called, "b": made.integer(5)})
    choice = {"condition": test, "true_value": before[mirrored], "false_value": turned}
    chosen = made.add("prim.Select", {**span, **choice})
    kept = results or dimensions
    inverse = 0
    if kept == dimensions:
        variables = made.variables(dimensions)
        inverse = made.map(variables, variables, 0)
    return made.saved(made.map(before, [*before[: kept - 1], chosen], inverse))


def index_map(rng: Random, marker: str) -> str:
    """The text of an index map: honest, calling code, in circles, or no map at all."""
    if marker and rng.random() < 0.7:
        return calling_map(marker, rng.choice((2, 2, 3)), rng.choice((4, 64)), rng.choice((0, 2)))
    made = _Map()
    before = made.variables(rng.choice((1, 2, 4)) if rng.random() < 0.95 else 60)
    after = rng.sample(before, len(before))
    for _ in range(rng.choice((0, 0, 0, 3)) if rng.random() < 0.95 else rng.choice((40, 200))):
        after[0] = made.add("prim.Add", {"span": 0, "ty": made.int32, "a": after[0], "b": after[0]})
    if rng.random() < 0.1:
        after[-1] = len(made.nodes) + rng.choice((0, 1, 50))
    saved = made.saved(made.map(before, after, rng.choice((0, 0, before[0]))))
    return rng.choice((saved, saved, saved, saved[:-5], text(rng)))
