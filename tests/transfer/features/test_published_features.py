from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.dataset_fixtures import gmm_trace, gmm_workload
from tests.log_fixtures import ANSOR_LOGS
from transfer.features.published_features import (
    CPU_LAYOUT,
    GPU_LAYOUT,
    PublishedLayout,
    published_features,
    step_vector,
)
from transfer.language.ansor import AnsorReader
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive

LOG = ANSOR_LOGS / "benchmarks/microkernels/DpAnsor/a100/log/a100_conv2d.log.gz"


def one_hot(place: int) -> list[int]:
    return [int(place == slot) for slot in range(1, 12)]


@pytest.mark.parametrize(
    ("step", "cpu", "gpu", "tail"),
    [
        (["AN", 3, 2, 6], 3, 1, [3, 2, 6]),
        (["FU", 3, [0, 1, 2]], 9, 8, [3, 0, 1, 2]),
        (["RE", 3, [1, 0]], 2, 9, [3, 1, 0]),
        (["SP", 3, 0, 512, [1, 8, 4], 1], 6, 7, [3, 0, 512, 1, 8, 4, 1]),
        (["FSP", 3, 0, 2, 3], 10, 11, [3, 0, 2, 3]),
        (["FFSP", 3, 0, [2, 4], 1, 1], 0, 6, [3, 0, 2, 4, 1, 1]),
        (["SA", 3, 0, 8, 4], 0, 0, [3, 0, 8, 4]),
        (["CA", 2, 3, 5], 8, 5, [2, 3, 5]),
        (["CI", 1], 1, 4, [1]),
        (["CR", 1], 7, 0, [1]),
        (["RF", 3, 4, 2], 4, 0, [3, 4, 2]),
        (["CHW", 3, "local"], 5, 3, [3, 1]),
        (["CHW", 3, "global"], 5, 3, [3, 3]),
        (["CHR", 0, "shared", [3, 4]], 0, 2, None),
        (["PR", 3, 0, "auto_unroll_max_step$64"], 11, 10, None),
    ],
)
def test_rows_of_single_steps(step: list[Any], cpu: int, gpu: int, tail: list[int] | None) -> None:
    tails = (tail, tail)
    if step[0] == "CHR":
        tails = ([0, 0, 3, 4], [0, 1, 3, 4])
    elif step[0] == "PR":
        tails = ([3, 0, 4], [3, 0, 3])
    for layout, place, rest in zip((CPU_LAYOUT, GPU_LAYOUT), (cpu, gpu), tails, strict=True):
        assert rest is not None
        assert step_vector(step, layout) == [*one_hot(place), *rest]


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [(CPU_LAYOUT, {16: 1, 0: 2, 512: 3, 64: 4}), (GPU_LAYOUT, {0: 1, 16: 2, 64: 3, 1024: 4, 512: 5})],
)
def test_unrolling_limits_have_the_published_numbers(
    layout: PublishedLayout, numbers: dict[int, int]
) -> None:
    for limit, number in numbers.items():
        assert step_vector(["PR", 0, 0, f"auto_unroll_max_step${limit}"], layout)[-1] == number


def test_what_is_outside_of_the_vocabularies_is_zero() -> None:
    assert step_vector(["PR", 2, 0, "auto_unroll_max_step$1024"], CPU_LAYOUT) == [*one_hot(11), 2, 0, 0]
    assert step_vector(["CHR", 2, "local", [3]], CPU_LAYOUT) == [*one_hot(0), 2, 0, 3]
    assert step_vector(["CHR", 2, "local", [3]], GPU_LAYOUT) == [*one_hot(2), 2, 0, 3]


def test_a_schedule_is_cut_and_padded_to_the_layout() -> None:
    steps = [["SP", 0, 0, 8, [2], 1], ["AN", 0, 0, 3], *([["CI", 1]] * 60)]
    sequence = AnsorReader().read(json.dumps(steps))
    for layout, shape in ((CPU_LAYOUT, (25, 22)), (GPU_LAYOUT, (40, 20))):
        found = published_features([sequence, sequence[:2], []], layout)
        assert found.shape == (3, *shape)
        assert found.dtype == np.float32
        for place, step in enumerate(steps[: layout.steps]):
            row = step_vector(step, layout)
            assert found[0, place].tolist() == [*row, *[0] * (layout.width - len(row))]
        np.testing.assert_array_equal(found[1, :2], found[0, :2])
        assert not found[1, 2:].any()
        assert not found[2].any()


def test_numbers_of_no_program_are_cut_and_others_stay() -> None:
    steps = [["SP", 0, 0, 2**62, [2**40, 2**30], 1], ["PR", 0, 0, "auto_unroll_max_step$64"]]
    row = published_features([AnsorReader().read(json.dumps(steps))], CPU_LAYOUT)[0, 0]
    assert row.tolist() == [*one_hot(6), 0, 0, 2**31, 2**31, 2**30, 1, *[0] * 5]


def test_long_rows_lose_their_end() -> None:
    order = list(range(30))[::-1]
    split = [["SP", 0, place, 4, [2], 1] for place in range(0, 30, 2)]
    sequence = AnsorReader().read(json.dumps([*split, ["RE", 0, order]]))
    row = published_features([sequence], CPU_LAYOUT)[0, len(split)]
    assert row.tolist() == [*one_hot(2), 0, *order[:10]]


def test_other_dialects_come_by_way_of_ansor() -> None:
    sequence = MetaScheduleReader().read(gmm_trace(), gmm_workload())
    found = published_features([sequence], CPU_LAYOUT)[0]
    tags = [CPU_LAYOUT.tags[int(row[:11].argmax())] for row in found if row[:11].any()]
    assert tags.count("SP") == 4
    assert tags.index("SP") < tags.index("RE") < tags.index("CHW")
    # 2 * 128 * 64 * 128: the second split is of 128 into 16, 2, 1, 4.
    assert [128, 2, 1, 4] in [row[13:17].tolist() for row in found]


@pytest.mark.data
@pytest.mark.skipif(not LOG.is_file(), reason="no logs of other people's devices beside the checkout")
def test_real_logs_give_the_rows_of_their_own_steps() -> None:
    with gzip.open(LOG, "rt") as file:
        logged = [
            json.loads(line)["i"][1][1] for line in file if line.startswith("{") and line.endswith("\n")
        ]
    assert len(logged) > 100
    found = published_features([AnsorReader().read(json.dumps(steps)) for steps in logged], GPU_LAYOUT)
    for schedule, steps in zip(found, logged, strict=True):
        for row, step in zip(schedule, steps, strict=False):
            expected = step_vector(step, GPU_LAYOUT)[: GPU_LAYOUT.width]
            assert row.tolist() == [*expected, *[0] * (GPU_LAYOUT.width - len(expected))]


def test_an_unknown_primitive_gives_no_row() -> None:
    assert not published_features([[Primitive(Kind.UNK)]], GPU_LAYOUT).any()
