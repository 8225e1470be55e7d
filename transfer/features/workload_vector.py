"""What a workload is, as numbers: operator, amount of work, shapes.

Published TLP gives the network no workload, so equal step lists of different programs get one score. Called
by `transfer.features.extractor` only; knows nothing of schedules or devices.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from agents.records import Workload
from transfer.arrays import Singles

#: Operators with a slot of their own: TVM's operator suite (`te_workload.CONFIGS`); others are hashed.
_OPERATORS = ("C1D", "C2D", "C3D", "GMM", "GRP", "DIL", "DEP", "T2D", "CAP", "NRM", "SFM", "CBR", "TBG")
_OPERATOR_BUCKETS = 4
#: Dimensions kept of each shape, last ones first: the last is contiguous in memory.
_DIMENSIONS = 5
#: Arguments whose shape is kept: the output, then the inputs in order.
_SHAPES = ("output", "input_0", "input_1")

WORKLOAD_NAMES: tuple[str, ...] = (
    *(f"operator_{name}" for name in _OPERATORS),
    *(f"operator_bucket_{bucket}" for bucket in range(_OPERATOR_BUCKETS)),
    "flops",
    "bytes",
    "flops_per_byte",
    "arguments",
    *(f"{name}_{what}" for name in _SHAPES for what in ("size", "rank")),
    *(f"{name}_dim_{place}" for name in _SHAPES for place in range(_DIMENSIONS)),
    "flops_per_output",
    "half_precision",
    "integer",
)


def workload_vector(workload: Workload) -> Singles:
    """Describe one workload; sizes as log2(1 + x), ratios as log2.

    Returns:
        (V,) values in the order of `WORKLOAD_NAMES`.
    """
    is_listed = workload.operator in _OPERATORS
    bucket = zlib.crc32(workload.operator.encode()) % _OPERATOR_BUCKETS
    shapes = workload.arg_shapes
    output = shapes[-1] if shapes else ()
    picked = (output, *shapes[:-1], (), ())[: len(_SHAPES)]
    moved = max(1, workload.bytes_moved)
    flops = max(0.0, workload.flops)
    values = [
        *(float(workload.operator == name) for name in _OPERATORS),
        *(float(not is_listed and bucket == place) for place in range(_OPERATOR_BUCKETS)),
        math.log2(1 + flops),
        math.log2(1 + moved),
        math.log2((1 + flops) / moved),
        float(len(shapes)),
    ]
    for shape in picked:
        values += [math.log2(1 + math.prod(shape)) if shape else 0.0, float(len(shape))]
    for shape in picked:
        last_first = (*reversed(shape), *(0,) * _DIMENSIONS)[:_DIMENSIONS]
        values += [math.log2(1 + extent) for extent in last_first]
    values += [
        math.log2((1 + flops) / max(1, math.prod(output))),
        float(any("16" in dtype for dtype in workload.arg_dtypes)),
        float(any("int" in dtype for dtype in workload.arg_dtypes)),
    ]
    return np.array(values, dtype=np.float32)
