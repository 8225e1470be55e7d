from __future__ import annotations

import json
from typing import Any

import pytest

from agents.records import Workload, WorkloadId, canonical_json
from transfer.errors import TraceError
from transfer.language.knobs import KnobReader, check_knobs
from transfer.language.primitives import Kind, Primitive, Role


def workload(problem: Any) -> Workload:
    return Workload(
        workload_id=WorkloadId("0" * 16),
        name="",
        operator="",
        arg_shapes=(),
        arg_dtypes=(),
        flops=0.0,
        networks=(),
        module_json=canonical_json({"dialect": "knobs", "kernel": "k", "problem": problem}),
    )


def read(problem: Any = None, **knobs: Any) -> tuple[Primitive, ...]:
    return KnobReader().read(json.dumps(knobs), workload(problem))


def derived(steps: tuple[Primitive, ...]) -> dict[str, int]:
    names = ("threads", "elements", "area", "shared")
    return {step.names[0]: step.numbers[1] for step in steps if step.names[0] in names}


def test_blocks_and_tiles_become_splits_of_the_problem() -> None:
    steps = read([4096, 2048], block_size_x=32, block_size_y=4, tile_size_x=2, tile_size_y=3)
    splits = [step for step in steps if step.kind is Kind.SP]
    assert [(step.numbers, step.names) for step in splits] == [
        ((1, 2048, 4, 3), ("", Role.TILED, "spatial")),
        ((2, 4096, 32, 2), ("", Role.TILED, "spatial")),
    ]
    assert derived(steps) == {"threads": 128, "elements": 6, "area": 768}


def test_shared_memory_of_a_stencil_and_of_a_matrix_product() -> None:
    stencil = {
        "block_size_x": 16,
        "block_size_y": 8,
        "tile_size_x": 1,
        "filter_width": 15,
        "filter_height": 15,
    }
    assert derived(read(use_shmem=1, **stencil))["shared"] == 30 * 22 * 4
    assert "shared" not in derived(read(use_shmem=0, **stencil))
    product = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 3, "num_warps": 4}
    found = derived(read(["64", "torch.float16"], **product))
    assert found == {"threads": 128, "area": 2048, "shared": (64 + 32) * 16 * 2 * 3}
    assert derived(read(shared_memory_bytes=4096))["shared"] == 4096


def test_other_knobs_keep_name_and_number() -> None:
    steps = read(GROUP=8, use_padding=0, mode="fast", loop_unroll_factor=4, vector_width=2, warps=[3, None])
    assert {(step.kind, step.numbers, step.names[0], step.names[2]) for step in steps} == {
        (Kind.AN, (-1, 8), "GROUP", "none"),
        (Kind.AN, (-1, 1), "use_padding=0", "none"),
        (Kind.AN, (-1, 1), "mode=fast", "none"),
        (Kind.PR, (4,), "loop_unroll_factor", "auto_unroll_max_step"),
        (Kind.AN, (-1, 2), "vector_width", "vectorize"),
        (Kind.AN, (-1, 3), "warps[0]", "none"),
        (Kind.AN, (-1, 1), "warps[1]=None", "none"),
    }


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "not an object"),
        ({f"k{place}": 1 for place in range(65)}, "too many knobs"),
        ({"": 1}, "name of a knob"),
        ({"a": 2**64}, "out of range"),
        ({"a": float("nan")}, "value of a knob"),
        ({"a": {"b": 1}}, "value of a knob"),
        ({"a": "x" * 513}, "value of a knob"),
        ({"a": list(range(300))}, "value of a knob"),
        ({"a": [[[[[1]]]]]}, "value of a knob"),
    ],
)
def test_what_is_no_configuration(value: Any, fault: str) -> None:
    assert fault in check_knobs(value)
    with pytest.raises(TraceError):
        KnobReader().read(json.dumps(value))


@pytest.mark.parametrize("trace", ["", "{", "[" * 5000, '{"a":1}' + " " * (1 << 20)])
def test_text_that_is_no_configuration(trace: str) -> None:
    with pytest.raises(TraceError):
        KnobReader().read(trace)
