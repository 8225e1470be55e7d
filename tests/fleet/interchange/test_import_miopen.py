"""MIOpen's find databases: both forms of line, and what no honest tool would write."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import canonical_json
from fleet.config.settings import FleetConfig
from fleet.interchange.dialects.miopen import gpu_of
from fleet.interchange.line_reader import LineReader
from fleet.interchange.logs.catalog import Measurement
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines
from fleet.onboarding.replay import onboard_recorded
from tests.log_fixtures import DATA, run
from tests.table_fixtures import rows

#: The first lines of gfx90878 and gfx1030_36 of ROCm/MIOpen @ 2d1fd99 (MIT), in the two forms.
VOLUME = "1-1-1-1-1x4x4-512-1-4-4-128-0x0x0-1x1x1-1x1x1-0-NCDHW-FP32"
NEW_FORM = (
    f"{VOLUME}-B=ConvDirectNaiveConvBwd:0.86304,0,miopenConvolutionBwdDataAlgoDirect;"
    "GemmBwdRest:3.11328,32768,miopenConvolutionBwdDataAlgoGEMM\n"
    f"{VOLUME}-W=GemmWrwUniversal:2.84401,32768,miopenConvolutionBwdWeightsAlgoGEMM;"
    "ConvDirectNaiveConvWrw:3.46576,0,miopenConvolutionBwdWeightsAlgoDirect\n"
)
WEIGHTS = "miopenConvolutionBwdWeightsAlgo"
OLD_FORM = (
    "1-1-1-3x3-2-3-3-128-0x0-1x1-1x1-0-NCHW-FP32-W="
    f"{WEIGHTS}Winograd:ConvBinWinogradRxSf2x3,0.12116,0,{WEIGHTS}Winograd,<unused>;"
    f"{WEIGHTS}Direct:ConvDirectNaiveConvWrw,2.18017,0,{WEIGHTS}Direct,<unused>;"
    f"{WEIGHTS}GEMM:GemmWrwUniversal,3.02316,72,{WEIGHTS}GEMM,not used\n"
)
KEY = "64-28-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-F"
TIMED = "ConvAsm1x1U:0.05,0,x"


def find_db(folder: Path, *lines: str, name: str = "gfx90878.HIP.fdb.txt") -> Path:
    path = folder / name
    data = "".join(line if line.endswith("\n") else line + "\n" for line in lines).encode()
    path.write_bytes(bz2.compress(data) if name.endswith(".bz2") else data)
    return path


def entries(path: Path) -> tuple[list[Measurement], list[Rejected]]:
    _, lines = LineReader().open(path)
    listed = list(lines)
    return (
        [entry for entry in listed if isinstance(entry, Measurement)],
        [entry for entry in listed if isinstance(entry, Rejected)],
    )


@pytest.mark.usefixtures("few_trees")
def test_a_gpu_of_a_find_database_is_onboarded_by_replay(tmp_path: Path) -> None:
    def timed(size: int, unlike: float) -> str:
        # Which solver wins depends on the size, and is the same on all three.
        secs = [1 + n * size % 7 + unlike * n for n in range(1, 7)]
        return ";".join(f"Solver{n}:{secs[n - 1]:.3f},0,x" for n in range(1, 7))

    sizes = [size for size in range(8, 24) if size % 7]
    for place, name in enumerate(("gfx900_56", "gfx906_60", "gfx906_64")):
        keys = [KEY.replace("28-30", f"{size}-30") for size in sizes]
        lines = [f"{key}={timed(size, 0.01 * place)}" for key, size in zip(keys, sizes, strict=True)]
        run(tmp_path, find_db(tmp_path, *lines, name=f"{name}.HIP.fdb.txt"), device=name)
    settings = {
        "store": {"path": str(tmp_path / "store")},
        "training": {"epochs": 1},
        "onboarding": {"strategy": "source_devices", "samples": 16, "shipped": False},
    }
    result = onboard_recorded(FleetConfig.model_validate(settings), "gfx906_64")
    assert (result["samples"], result["failed_samples"]) == (16, 0)
    assert set(result["source_devices"]) == {"gfx900_56", "gfx906_60"}
    assert result["truth"]["top1"] > result["truth"]["random_top1"] + 0.1


NAMES = """
gfx906_60.HIP.fdb.txt.bz2 -> gfx906 60
gfx90a68.HIP.fdb.txt      -> gfx90a 104
gfx942130.HIP.fdb.txt     -> gfx942 304
gfx1030_36.HIP.fdb.txt    -> gfx1030 36
find.txt                  ->
"""


@pytest.mark.parametrize(("name", "gpu"), rows(NAMES))
def test_the_gpu_is_in_the_name(name: str, gpu: str) -> None:
    assert gpu_of(name) == (gpu, gpu.partition(" ")[0])


@pytest.mark.parametrize("name", ["gfx999_40.HIP.fdb.txt", "board.txt"])
def test_a_gpu_without_a_data_sheet_is_said_in_a_line(tmp_path: Path, name: str) -> None:
    report = run(tmp_path, find_db(tmp_path, NEW_FORM, name=name), device="board-7")
    assert report.imported == 4
    assert "no data sheet of" in report.described_by
    assert ("gfx999 40" if "gfx" in name else "board-7") in report.described_by


#: A second line, in which KEY is a good key and TIMED a good time, and the reason why it is not imported.
HOSTILE = """
64-28-30-3x3-128-28-30-32-1x1- -> truncated
KEY=ConvAsm1x1U:0.0            -> a solver has a wrong number of fields
KEY=                           -> not measured
KEY=:1.0,0,x                   -> a solver's name is no word of up to 128 letters
KEY=A:1.0,0,x,y                -> a solver has a wrong number of fields
KEY=A:-1.0,0,x                 -> a cost is negative
KEY=A:inf,0,x                  -> a number is not finite
KEY=A:nan,0,x                  -> a number is not finite
KEY=A:1e400,0,x                -> a number is not finite
KEY=A:0,0,x                    -> not measured
KEY=A:1e-7,0,x                 -> a cost is below a nanosecond
KEY=A:1e13,0,x                 -> the mark of a failure, but no error
KEY=A:1_0,0,x                  -> a cost is not a number
KEY=A:soon,0,x                 -> a cost is not a number
28-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-F=TIMED         -> a key has a wrong number of fields
64-28-30-3x3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-F=TIMED    -> sizes of a key contradict each other
64-28-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-NCHW-FP16-F=TIMED -> a key has a wrong number of fields
KEY_g7=TIMED                   -> sizes of a key contradict each other
KEY_g0=TIMED                   -> sizes of a key contradict each other
-KEY=TIMED                     -> a key has a wrong number of fields
64-0-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-F=TIMED       -> a size of a key is out of range
999999999999999999999999999999KEY=TIMED                        -> a size of a key is out of range
64-28-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-X=TIMED      -> a direction is none of F, B and W
64-xx-30-3x3-128-28-30-32-1x1-1x1-1x1-0-NCHW-FP16-F=TIMED      -> a size of a key is not a number
KEY\u00b5=TIMED                -> a key has other characters than numbers and words
                               -> blank line
# made by hand                 -> comment line
"""
HOSTILE_LINES = [
    (f"{KEY}={'S' * 200}:1.0,0,x", "a solver's name is no word of up to 128 letters"),
    (f"{KEY}={'S' * (1 << 20)}:1.0,0,x", "line too long"),
    *((line.replace("KEY", KEY).replace("TIMED", TIMED), reason) for line, reason in rows(HOSTILE)),
]


@pytest.mark.parametrize(("line", "reason"), HOSTILE_LINES, ids=[line[-30:] for line, _ in HOSTILE_LINES])
def test_hostile_lines_cost_themselves_only(tmp_path: Path, line: str, reason: str) -> None:
    measured, rejected = entries(find_db(tmp_path, OLD_FORM, line, NEW_FORM))
    assert len(measured) == 7
    assert [one.reason for one in rejected] == [reason]
    assert all("\n" not in one.detail and len(one.detail) < 200 for one in rejected)


def test_a_faulty_solver_costs_no_other(tmp_path: Path) -> None:
    measured, rejected = entries(find_db(tmp_path, f"{KEY}={TIMED};B:-1,0,x;C:0.5,0,x"))
    assert [entry.trace for entry in measured] == ['{"solver":"ConvAsm1x1U"}', '{"solver":"C"}']
    assert [reason.reason for reason in rejected] == ["a cost is negative"]


def test_damage_in_bz2_costs_the_block(tmp_path: Path) -> None:
    packed = bz2.compress(NEW_FORM.encode())
    path = tmp_path / "gfx90878.HIP.fdb.txt.bz2"
    path.write_bytes(packed + packed[:-60] + b"\xff" * 20 + packed[-40:])
    report = run(tmp_path, path, device="mi100")
    assert (report.imported, report.damaged) == (4, {str(path): "bz2: invalid data stream"})
    for end in (b"rubbish", packed[:50]):
        path.write_bytes(packed + end)
        lines = LogLines(path)
        assert len(list(lines)) == 2
        assert lines.damage in (
            "bz2: something else follows the compressed data",
            "bz2: the file ends too early",
        )


#: Parts of a key, and what stands in their place.
ODD = "300 -3 0 1x1x1 NHWC NCDHW FP32 B W F_g2 _g \x00"
PARTS = st.sampled_from([*KEY.split("-"), *ODD.split(" "), ""])
KEYS = st.just(KEY) | st.lists(PARTS, min_size=1, max_size=20).map("-".join) | st.text(max_size=40)
TIMES = st.floats().map(str) | st.sampled_from(["1", "", "soon", "0x1", "1_0", " 1", "1\r"])
SOLVERS = st.builds("{}:{},0,x".format, st.just("ConvAsm1x1U") | st.text(max_size=9), TIMES)
LINES = st.builds("{}={};{}".format, KEYS, SOLVERS | st.text(max_size=20), SOLVERS)


@given(st.lists(LINES, max_size=5))
def test_any_lines_are_measurements_or_reasons(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("db") / "gfx906_60.HIP.fdb.txt"
    path.write_text("\n".join([f"{KEY}={TIMED}", *lines]), encoding="utf-8", errors="replace")
    measured, rejected = entries(path)
    assert len(measured) + len(rejected) >= 1 + len([line for line in lines[:-1] if "\n" not in line])
    assert not [reason for reason in rejected if "reader fault" in reason.reason]
    for entry in measured:
        assert entry.trace == canonical_json(json.loads(entry.trace))
        (secs,) = entry.result.run_secs
        assert 1e-9 <= secs < 1e9


@pytest.mark.skipif(
    not (DATA / "miopen_find_db").is_dir(), reason="the public databases lie beside the checkout"
)
def test_a_real_database_is_read_whole(tmp_path: Path) -> None:
    real = DATA / "miopen_find_db" / "gfx803_36.HIP.fdb.txt.bz2"
    head = bz2.decompress(real.read_bytes())[: 1 << 20].rpartition(b"\n")[0]
    path = find_db(tmp_path, head.decode(), name="gfx803_36.HIP.fdb.txt")
    measured, rejected = entries(path)
    assert not rejected
    assert len({entry.workload.workload.workload_id for entry in measured}) == head.count(b"\n") + 1
    assert len(measured) > 2 * head.count(b"\n")
