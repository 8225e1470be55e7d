from __future__ import annotations

import ast
import math
from typing import Any

import pytest

from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.operators import autotvm_operator, block_operator
from fleet.interchange.logs.targets import parse_target
from tests.table_fixtures import cells

#: Function | its arguments, a tensor by its shape in round brackets | operator | shape of the output | how
#: many products make an element of it, counted by hand.
KNOWN = """
conv2d_NCHWc.x86 | (1,3,224,224), (64,3,7,7), [2,2], [3,3,3,3], [1,1], "NCHW" | C2D | 1, 64, 112, 112 | 147
conv2d_nchw.cuda | (128,128,28,28), (128,128,3,3), 1, "SAME", 1, "float32" | C2D | 128, 128, 28, 28 | 1152
conv2d_nchw_winograd.cuda | (1,48,35,35), (64,48,5,5), [1,1], [2,2,2,2], [1,1] | C2D | 1, 64, 35, 35 | 1200
conv2d_nhwc.x86 | (1,28,28,16), (3,3,16,32), [1,1], "VALID", [2,2], "float32" | DIL | 1, 24, 24, 32 | 144
depthwise_conv2d_nchw.cuda | (1,32,112,112), (32,1,3,3), [2,2], [1,1,1,1], [1,1] | DEP | 1, 32, 56, 56 | 9
group_conv2d_nchw.cuda | (1,32,8,8), (64,8,3,3), [1,1], [1,1], [1,1], 4 | GRP | 1, 64, 8, 8 | 72
conv2d_transpose_nchw.cuda | (1,8,4,4), (8,6,4,4), [2,2], [1,1,1,1], "float32", [0,0] | T2D | 1, 6, 8, 8 | 32
conv3d_ncdhw.cuda | (1,3,8,8,8), (4,3,3,3,3), [1,1,1], [1,1,1], [1,1,1], 1 | C3D | 1, 4, 8, 8, 8 | 81
dense_nopack.x86 | (1,768), (1000,768), None, "float32" | GMM | 1, 1000 | 768
batch_matmul.x86 | (2,128,64), (2,64,32), [2,128,32], "float32", 0, 0 | GMM | 2, 128, 32 | 64
batch_matmul.cuda | (2,128,64), (2,32,64) | GMM | 2, 128, 32 | 64
"""
#: What does not follow, or is no operator that is known.
UNKNOWN = """
autotvm_mm | 1000, 800, 700, "float32"
conv2d_nchw.cuda | (1,3,8,8), (4,3,3,3)
conv2d_nchw.cuda | (1,3,8,8), (4,3,3,3), [0,0], [0,0], [1,1]
conv2d_nchw.cuda | (1,3,2,2), (4,3,9,9), [1,1], [0,0], [1,1]
conv2d_NCHWc.x86 | (1,1,8,8,3), (1,1,3,3,3,4), [1,1], [0,0], [1,1]
batch_matmul.x86 | (1,2,3), (1,5,7)
dense.x86 | (1,2), (3,4)
conv2d_hwcn.cuda | (8,8,3,1), (3,3,3,4), [1,1], "SAME", [1,1]
conv2d_nchw.cuda | (1,3,8,8), (4,3,3,3), [1,1], {"a": 1}, [1,1]
"""


def arguments(text: str) -> list[Any]:
    """Those of a line of AutoTVM."""
    values = ast.literal_eval(f"[{text}]")
    return [["TENSOR", list(one), "float32"] if isinstance(one, tuple) else one for one in values]


@pytest.mark.parametrize(("function", "args", "word", "output", "each"), cells(KNOWN))
def test_known_operators_have_their_output_and_flops(
    function: str, args: str, word: str, output: str, each: str
) -> None:
    found = autotvm_operator(function, arguments(args))
    shape = tuple(map(int, output.split(",")))
    assert (found.name, found.shapes[-1]) == (word, shape)
    # Two for each multiplication and addition.
    assert found.flops == 2 * math.prod(shape) * int(each)
    assert len(found.dtypes) == len(found.shapes) == 3


@pytest.mark.parametrize(("function", "args"), cells(UNKNOWN))
def test_what_does_not_follow_is_left_out(function: str, args: str) -> None:
    found = autotvm_operator(function, arguments(args))
    assert (found.name, found.flops) == (function, 0.0)
    assert len(found.shapes) == args.count("(")


SHAPES = ((1, 832, 7, 7), (48, 832, 1, 1), (1, 48, 1, 1), (1, 48, 7, 7))
#: Blocks of a program, how many of those shapes it has | its operator and FLOPs: here 2 x 48 x 49 x 832.
BLOCKS = """
pad_temp conv2d_nchw T_add                | 4 | C2D           | 3913728
data_pack bgemm inverse conv2d_winograd   | 4 | C2D           | 0
pad_temp pool_max                         | 2 | pool_max      | 0
                                          | 0 | meta_schedule | 0
"""


@pytest.mark.parametrize(("blocks", "count", "name", "flops"), cells(BLOCKS))
def test_blocks_tell_the_operator_of_a_database(blocks: str, count: str, name: str, flops: str) -> None:
    shapes = SHAPES[: int(count)]
    found = block_operator(blocks.split(), shapes, ("float32",) * len(shapes))
    assert (found.name, found.flops) == (name, float(flops))


def test_what_is_no_target_is_rejected() -> None:
    for value in ("", "quantum -x", None, {"kind": 3}, {}, "x" * 10_000):
        with pytest.raises(Rejected):
            parse_target(value)
