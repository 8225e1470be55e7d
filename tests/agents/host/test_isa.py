from __future__ import annotations

import pytest

from agents.host import cpu_features as isa
from agents.host.llvm_features import LlvmSilentError, ask_llvm
from tests.host_fixtures import GRAVITON_FLAGS, PI_FLAGS, SANDYBRIDGE_FLAGS, V2_FLAGS, V3_FLAGS, V4_FLAGS


@pytest.mark.parametrize(
    ("flags", "highest"),
    [
        *((V2_FLAGS, "x86-64-v2"), (SANDYBRIDGE_FLAGS, "sandybridge"), (V4_FLAGS, "x86-64-v4")),
        # One missing flag takes the level away.
        *(
            (V3_FLAGS.replace(f" {word}", ""), "sandybridge")
            for word in ("fma", "bmi2", "movbe", "abm", "f16c")
        ),
    ],
)
def test_a_cpu_runs_every_level_up_to_its_own(flags: str, highest: str) -> None:
    levels = isa.runnable_levels("x86_64", flags.split())
    everything = ["x86-64", "x86-64-v2", "sandybridge", "x86-64-v3", "x86-64-v4"]
    assert [level.name for level in levels] == everything[: everything.index(highest) + 1]
    assert isa.runnable_levels("amd64", flags.split()) == levels


def test_vector_width_follows_the_flags() -> None:
    widths = [isa.vector_bytes("x86_64", f.split()) for f in (V2_FLAGS, SANDYBRIDGE_FLAGS, V4_FLAGS)]
    assert widths == [16, 32, 64]
    assert isa.vector_bytes("aarch64", PI_FLAGS.split(), sve_bytes=64) == 16
    assert isa.vector_bytes("aarch64", [*PI_FLAGS.split(), "sve"], sve_bytes=32) == 32
    assert isa.vector_bytes("riscv64", ["v"]) == 0


def test_features_of_an_arm_server_come_in_llvm_words() -> None:
    assert isa.tensor_features(GRAVITON_FLAGS.split()) == ("neon", "crc", "lse", "rdm", "fullfp16", "dotprod")


def test_llvm_that_cannot_be_asked_is_an_error_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(LlvmSilentError, match="ended with code 1"):
        ask_llvm({"kind": "llvm", "mcpu": "znver4"}, "x86_64")


@pytest.mark.tvm
def test_the_table_of_levels_agrees_with_llvm() -> None:
    from tvm.target import Target, codegen

    for level in isa.LEVELS:
        triple = f"{level.arch}-linux-gnu"
        assert codegen.llvm_is_valid_cpu(level.mcpu, triple), level.name
        target = Target({"kind": "llvm", "mcpu": level.mcpu, "mtriple": triple})
        features = codegen.llvm_get_cpu_features(target)
        by_llvm = isa.flags_of_features(level.arch, map(str, features))
        assert by_llvm == level.flags, level.name


@pytest.mark.tvm
def test_llvm_tells_needs_and_unknown_names() -> None:
    target = {"kind": "llvm", "mcpu": "znver4", "mattr": ["+fast-gather", "+bogus"]}
    flags, unknown = ask_llvm(target, "x86_64")
    assert {"avx512_vnni", "fma"} <= flags
    assert unknown == ("+bogus",)
