from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from agents.records import Candidate
from tests.dataset_fixtures import NRM_TRACE, cpu_device, gmm_candidates, gmm_trace, gmm_workload
from tests.model_fixtures import assert_same_features
from tests.table_fixtures import rows
from transfer.errors import TraceError, TransferError
from transfer.features.access import block_accesses
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.hardware import (
    HARDWARE_NAMES,
    MEASURED_NAMES,
    fitted_hardware,
    hardware_table,
    hardware_vector,
    kinship_steps,
)

SLOTS = (*HARDWARE_NAMES, *MEASURED_NAMES)


def extract(*traces: str) -> FeatureBlock:
    workload = gmm_workload()
    candidates = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in traces]
    return Extractor().extract(workload, candidates)


def summary(block: FeatureBlock, row: int = 0) -> dict[str, float]:
    return dict(zip(DEFAULT_SPEC.summary_names, block.summary[row].tolist(), strict=True))


def test_a_candidate_has_the_same_features_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = extract(gmm_trace(unroll=1)), extract(NRM_TRACE, gmm_trace(), gmm_trace(unroll=1))
    assert_same_features(alone, together.take(np.array([2])))
    assert_same_features(extract(gmm_trace(tail=False)), extract(gmm_trace()))
    # ...and after any others.
    monkeypatch.setattr("transfer.features.extractor._TABLE_LIMIT", 5)
    workload, used = gmm_workload(), Extractor()
    for candidate in gmm_candidates(workload, 4):
        block = used.extract(workload, [candidate])
        assert_same_features(block, Extractor().extract(workload, [candidate]))


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        # 4 rows, 32 columns and 8 steps of the reduction in registers; 4 * 8 <= 64 are unrolled.
        (
            gmm_trace(),
            "spatial_0_factor_0=5 spatial_1_factor_0=2 reduction_0_factor_0=3 cut_0_spatial=7"
            " cut_5_spatial=14 cut_5_reduction=7 waste_16_lanes=0 accumulators_8_lanes=4 unroll=6.0224"
            " unrolled_cut_1=1 unrolled_cut_2=1 write_cache=1 tiled=1 steps=11",
        ),
        # Loops of one iteration are skipped for the innermost ones.
        (
            gmm_trace(i=(128, 1, 1, 1), j=(64, 1, 1, 1)),
            "loop_0_extent=3 loop_0_reduction=1 scalar=1",
        ),
        (NRM_TRACE, "tiled=0 cut_5_spatial=0 scalar=0 rfactors=1 inlined=1 at_root=1"),
    ],
    ids=["matrix product", "loops of one iteration", "no tiling"],
)
def test_a_summary_tells_of_tiles_and_of_where_blocks_are(trace: str, expected: str) -> None:
    found = summary(extract(trace))
    for pair in expected.split():
        name, _, value = pair.partition("=")
        assert found[name] == pytest.approx(float(value), abs=1e-4), name


def test_absurd_factors_give_finite_features() -> None:
    huge = (2**62,) * 4
    block = extract(gmm_trace(i=huge, j=huge, k=(2**62, 0)), gmm_trace(i=(-1, 0, 0, 0)))
    assert np.isfinite(block.summary).all()
    assert np.isfinite(block.numbers).all()


@pytest.mark.tvm
def test_accesses_of_a_padded_convolution_follow_its_index_expressions() -> None:
    import tvm
    from tvm import te
    from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

    module = tvm.IRModule({"main": te.create_prim_func(CONFIGS["C2D"][0](1, 14, 14, 8, 16, 3, 2, 1))})
    found = block_accesses(tvm.ir.save_json(module))
    assert set(found) == {"PadInput", "conv2d_nhwc"}
    block = found["conv2d_nhwc"]
    assert block.extents == (1, 7, 7, 16, 3, 3, 8)
    assert block.spatial == (True,) * 4 + (False,) * 3
    reads = [buffer for buffer in block.buffers if not buffer.is_write]
    assert [buffer.shape for buffer in reads] == [(1, 16, 16, 8), (3, 3, 8, 16)]
    # Two output columns with a stride of 2 and three taps touch five input columns.
    tile = np.array([1, 1, 2, 4, 1, 3, 8], dtype=np.float64)
    assert reads[0].elements(tile) == 5 * 8
    assert reads[1].elements(tile) == 3 * 8 * 4
    assert reads[0].stride(2) == 16
    assert reads[0].stride(3) == 0


def test_what_cannot_be_extracted_is_named() -> None:
    workload = gmm_workload()
    bad = Candidate(workload_id=workload.workload_id, trace="nonsense")
    with pytest.raises(TraceError, match=bad.candidate_id):
        Extractor().extract(workload, [bad])
    strange = Candidate(workload_id=workload.workload_id, trace="", dialect="klingon")
    with pytest.raises(TransferError, match="klingon"):
        Extractor().extract(workload, [strange])


def slots(name: str = "x86-64-v3", target: str = "", **changes: Any) -> dict[str, float]:
    """What is known of a device by the name of its CPU, its target and its descriptor."""
    spec, descriptor = cpu_device("dev", name, **changes)
    spec = msgspec.structs.replace(spec, target_json=target) if target else spec
    return dict(zip(SLOTS, hardware_vector(spec, descriptor).tolist(), strict=True))


#: The CPU that programs are built for, the bytes of its vectors, and what it has.
CPUS = """
    x86-64              -> 16
    x86-64-v2           -> 16
    sandybridge         -> 32
    x86-64-v3           -> 32 fma
    x86-64-v4           -> 64 fma avx512
    native              -> 64 fma avx512
    a-name-of-tomorrow  -> 64 fma avx512
                        -> 16
"""


@pytest.mark.parametrize(("mcpu", "has"), rows(CPUS))
def test_hardware_follows_the_target_and_not_the_host(mcpu: str, has: str) -> None:
    vector = slots(mcpu)
    vector_bytes, *flags = has.split()
    assert vector["target_vector_bytes"] == pytest.approx(np.log2(1 + int(vector_bytes)))
    assert [name for name in ("fma", "avx512") if vector[f"target_{name}"]] == flags
    assert vector["host_vector_bytes"] == pytest.approx(np.log2(65))
    assert vector["clock_mhz"] == pytest.approx(np.log2(3001))


def test_a_target_and_sizes_of_a_stranger_may_be_anything() -> None:
    for mattr in ("null", "7", "[]", '""'):
        assert slots(target=f'{{"kind":"llvm","mattr":{mattr},"mcpu":"x86-64-v3"}}') == slots()
    assert slots(target='{"kind":"llvm","mattr":null,"mcpu":null}') == slots("")
    odd = slots(memory_bytes=10**400, l2_bytes=-(10**400))
    assert odd == slots(memory_bytes=0, l2_bytes=0)


ROOFLINE = (("bytes_per_sec", 2.0**33), ("flops_per_sec", 2.0**36), ("loads_per_sec", 2.0**28))


def test_kinship_is_of_architecture_and_maker_and_not_of_size() -> None:
    is_gpu, x86, arm, shared, units = map(
        HARDWARE_NAMES.index, ("is_gpu", "arch_x86", "arch_arm", "l1d_bytes", "physical_cores")
    )
    cards = np.zeros((4, len(HARDWARE_NAMES)), dtype=np.float32)
    cards[:, is_gpu] = cards[:3, x86] = cards[3, arm] = 1
    cards[:, shared], cards[:, units] = (17, 17, 16, 17), (6, 8, 6, 6)
    steps = kinship_steps(cards)
    assert steps.tolist() == [[0, 0, 1, 2], [0, 0, 1, 2], [1, 1, 0, 2], [2, 2, 2, 0]]
    assert not kinship_steps(cards[:, :3]).any()


def test_measured_speeds_follow_what_is_claimed_where_each_device_has_all() -> None:
    named = len(HARDWARE_NAMES)
    plain, partly, measured = (
        hardware_vector(*cpu_device("dev", roofline=roofline)) for roofline in ((), ROOFLINE[:2], ROOFLINE)
    )
    assert np.array_equal(measured[:named], plain[:named])
    assert measured[named:].tolist() == pytest.approx([36, 33, 28])
    assert not plain[named:].any()
    assert np.array_equal(hardware_table([measured, measured]), np.stack([measured, measured]))
    for mixed in ([plain, plain], [measured, plain], [measured, partly], [measured, plain[:named]]):
        assert np.array_equal(hardware_table(mixed), np.stack([vector[:named] for vector in mixed]))
    # A model reads them or not.
    assert np.array_equal(fitted_hardware(measured, named), measured[:named])
    longer = fitted_hardware(measured[:named], len(measured))
    assert np.array_equal(longer[:named], measured[:named])
    assert np.isnan(longer[named:]).all()
    # Whoever reads another number of slots reads other slots: it is not for us to make them fit.
    assert fitted_hardware(measured, named + 1) is measured
