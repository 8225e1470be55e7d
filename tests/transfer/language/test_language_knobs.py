from __future__ import annotations

import json

import pytest

from agents.records import canonical_json
from tests.language_fixtures import as_lines
from tests.program_fixtures import program_workload
from tests.table_fixtures import rows
from transfer.errors import TraceError
from transfer.language.knobs import KnobReader, check_knobs

#: The problem of a kernel, a configuration of it, and the steps that this means.
CONFIGURATIONS = """
# Blocks and tiles become splits of the problem.
[4096, 2048]
{"block_size_x": 32, "block_size_y": 4, "tile_size_x": 2, "tile_size_y": 3}
SP 1 2048 4 3 | tiled spatial | -1
SP 2 4096 32 2 | tiled spatial | -1
AN -1 128 | threads tiled threadIdx.x | -1
AN -1 6 | elements tiled none | -1
AN -1 768 | area tiled tiling_structure | -1

# Shared memory of a stencil: 24 * 12 numbers of 4 bytes.
null
{"use_shmem":1, "block_size_x": 16, "block_size_y": 8, "tile_size_x": 1, "filter_width": 9,"filter_height": 5}
SP 1 0 8 1 | tiled spatial | -1
SP 2 0 16 1 | tiled spatial | -1
AN -1 128 | threads tiled threadIdx.x | -1
AN -1 1 | elements tiled none | -1
AN -1 128 | area tiled tiling_structure | -1
AN -1 1152 | shared tiled shared | -1
AN -1 5 | filter_height none | -1
AN -1 9 | filter_width none | -1
AN -1 1 | use_shmem=1 none | -1

null
{"use_shmem":0, "block_size_x": 16, "block_size_y": 8, "tile_size_x": 1, "filter_width": 9,"filter_height": 5}
SP 1 0 8 1 | tiled spatial | -1
SP 2 0 16 1 | tiled spatial | -1
AN -1 128 | threads tiled threadIdx.x | -1
AN -1 1 | elements tiled none | -1
AN -1 128 | area tiled tiling_structure | -1
AN -1 5 | filter_height none | -1
AN -1 9 | filter_width none | -1
AN -1 1 | use_shmem=0 none | -1

# ...and of a matrix product in float16: (64 + 32) * 16 numbers in three stages.
["64", "torch.float16"]
{"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 3, "num_warps": 4}
SP 5 0 16 | tiled reduction | -1
SP 3 0 64 | tiled spatial | -1
SP 4 0 32 | tiled spatial | -1
AN -1 128 | threads tiled threadIdx.x | -1
AN -1 2048 | area tiled tiling_structure | -1
AN -1 9216 | shared tiled shared | -1
AN -1 3 | num_stages none | -1
AN -1 4 | num_warps none | -1

null
{"shared_memory_bytes": 4096}
AN -1 4096 | shared tiled shared | -1
AN -1 4096 | shared_memory_bytes none | -1

# Other knobs keep name and number.
null
{"GROUP": 8, "use_padding": 0, "mode": "fast", "loop_unroll_factor": 4, "vector_width": 2, "warps": [3, null]}
AN -1 8 | GROUP none | -1
PR 4 | loop_unroll_factor tiled auto_unroll_max_step | -1
AN -1 1 | mode=fast none | -1
AN -1 1 | use_padding=0 none | -1
AN -1 2 | vector_width tiled vectorize | -1
AN -1 3 | warps[0] none | -1
AN -1 1 | warps[1]=None none | -1

# A word of several parts says what it shares with others.
null
{"solver": "ConvBinWinogradRxSf2x3g1"}
AN -1 1 | solver=ConvBinWinogradRxSf2x3g1 none | -1
AN -1 1 | solver~Conv none | -1
AN -1 1 | solver~Bin none | -1
AN -1 1 | solver~Winograd none | -1
AN -1 1 | solver~Rx none | -1
AN -1 1 | solver~Sf none | -1
AN -1 1 | solver~2x3 none | -1
AN -1 1 | solver~g none | -1
AN -1 1 | solver~1 none | -1
"""


@pytest.mark.parametrize("block", CONFIGURATIONS.strip().split("\n\n"))
def test_a_configuration_is_read_knob_by_knob(block: str) -> None:
    problem, knobs, *steps = [line for line in block.splitlines() if not line.startswith("#")]
    kernel = {"dialect": "knobs", "kernel": "k", "problem": json.loads(problem)}
    assert as_lines(KnobReader().read(knobs, program_workload(canonical_json(kernel)))) == steps


#: What is no configuration, and why; MANY stands for 65 knobs, LONG for 600 characters.
FAULTS = """
    []                         -> not an object
    {MANY}                     -> too many knobs
    {"": 1}                    -> name of a knob
    {"a": 18446744073709551616} -> out of range
    {"a": NaN}                 -> value of a knob
    {"a": {"b": 1}}            -> value of a knob
    {"a": "LONG"}              -> value of a knob
    {"a": [LISTED]}            -> value of a knob
    {"a": [[[[[1]]]]]}         -> value of a knob
"""
WORDS = {
    "MANY": ",".join(f'"k{place}": 1' for place in range(65)),
    "LONG": "x" * 600,
    "LISTED": ",".join("1" * 300),
}


@pytest.mark.parametrize(("text", "fault"), rows(FAULTS))
def test_what_is_no_configuration(text: str, fault: str) -> None:
    for word, meant in WORDS.items():
        text = text.replace(word, meant)
    assert fault in check_knobs(json.loads(text))
    with pytest.raises(TraceError):
        KnobReader().read(text)
