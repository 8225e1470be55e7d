from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.host import procfs as host
from agents.host.device_kinds import board_differences, compiled_target, differences, environment_id
from agents.host.probe import (
    core_groups,
    environment,
    probe,
    remote_descriptor,
)
from agents.records import Descriptor, DeviceKind, DeviceSpec, Protocol, as_json_dict, canonical_json
from tests.conftest import run_code
from tests.host_fixtures import (
    GPU,
    PI_CPUINFO,
    V3_FLAGS,
    arm_host,
    cuda_spec,
    gpu_host,
    laptop_files,
    local_spec,
    write_tree,
    x86_host,
)
from tests.scenario_fixtures import check_facts
from tests.table_fixtures import rows


def test_this_host_is_described() -> None:
    seen = probe()
    assert seen.usable_cores == tuple(sorted(os.sched_getaffinity(0)))
    assert seen.logical_cores >= len(seen.usable_cores)
    assert seen.physical_cores <= seen.logical_cores
    assert seen.vector_bytes >= 16
    assert seen.memory_bytes > 0
    assert dict(seen.versions)["apache-tvm"]
    assert len(seen.ansor_params) == 8


def test_probing_does_not_import_tvm() -> None:
    code = "import sys; from agents.host.probe import probe; probe(); print('tvm' in sys.modules)"
    assert run_code(code) == "False\n"


LAPTOP = """
    physical_cores = 2
    logical_cores = 4
    smt = true
    cpu_model = Intel(R) Core(TM) i5-7200U CPU @ 2.50GHz
    l1d_bytes = 32768
    l2_bytes = 262144
    l3_bytes = 3145728
    clock_min_mhz = 400.0
    clock_now_mhz = 2400.0
    clock_max_mhz = 3100.0
    governor = powersave
    memory_bytes = 8242008064
    ansor_params = [2, 32, 64, 0, 0, 0, 0, 0]
"""
ARM_BOARD = """
    cpu_model = Cortex-A72 (Raspberry Pi 4 Model B Rev 1.4)
    arch = aarch64
    vector_bytes = 16
    logical_cores = 4
    smt = false
    isa_flags has asimd
"""


@pytest.mark.parametrize(
    ("files", "arch", "facts"),
    [
        (laptop_files(), "x86_64", LAPTOP),
        ({"proc/cpuinfo": PI_CPUINFO, "sys/devices/system/cpu/online": "0-3\n"}, "arm64", ARM_BOARD),
    ],
    ids=["a laptop with SMT and a governor", "a board by its core and name"],
)
def test_a_host_is_described_by_its_files(
    tmp_path: Path, files: dict[str, str], arch: str, facts: str
) -> None:
    seen = probe(write_tree(tmp_path, files), usable=(0, 1, 2, 3), arch=arch)
    check_facts(as_json_dict(seen), facts)


@given(st.text(max_size=400))
def test_no_text_breaks_the_readers_of_kernel_files(text: str) -> None:
    host.parse_cpuinfo(text)
    host.parse_size(text)


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_survives_the_kernels_spelling(cpus: set[int]) -> None:
    assert host.parse_cpu_list(",".join(map(str, sorted(cpus))) + "\n") == tuple(sorted(cpus))
    assert host.parse_cpu_list("0-2,5") == (0, 1, 2, 5)


def test_the_snapshot_holds_what_the_host_shows(tmp_path: Path) -> None:
    root = write_tree(tmp_path, laptop_files())
    assert core_groups(root) == ((0, 2), (1, 3))
    snapshot = environment((1, 0), root)
    # The hottest sensor of the CPU; the Wi-Fi card's 99 degrees do not count.
    facts = """
        governor = [powersave, powersave]
        clock_mhz = [2401.0, 2400.0]
        turbo = "on"
        temperature_c = 63.5
        memory_pressure = 1.25
        memory_available_bytes = 3072000000
    """
    check_facts(snapshot, facts)
    assert json.loads(canonical_json(snapshot)) == snapshot


CPU_SPEC = local_spec({"mcpu": "x86-64-v3"})


def remote_spec(target: dict[str, object], tracker: str = "box:9190", key: str = "pi4") -> DeviceSpec:
    """A device of kind `rpc` that builds for this target."""
    return replace(
        CPU_SPEC, kind=DeviceKind.RPC, target_json=canonical_json(target), tracker=tracker, key=key
    )


def test_environment_ids_of_records_stay() -> None:
    """Another id would say that no record so far can be compared; `test_docs.py` has what enters it."""
    snapshot = {
        "arch": "x86_64",
        "cpu_model": "Example CPU",
        "versions": {"apache-tvm": "0.27.0.post1", "cuda-driver": "535.104.05"},
        "governor": ["performance", "powersave"],
        "turbo": "on",
    }
    for governors in (["performance", "powersave"], ["powersave", "performance", "powersave"]):
        found = environment_id(snapshot | {"governor": governors}, CPU_SPEC, Protocol(min_repeat_ms=10))
        assert found == "39de1c7d068e6f61b9853df5a8ee215d"


def test_llvm_gets_options_of_ours_ahead_of_those_of_the_device_and_cuda_none() -> None:
    own = ["-vectorize-loops:bool=false"]
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "cl-opt": own}
    compiled = compiled_target(target)
    assert compiled["cl-opt"][-1:] == own
    assert compiled_target({"kind": "llvm"})["cl-opt"] == compiled["cl-opt"][:-1] != []
    assert target["cl-opt"] == own
    cuda = {"kind": "cuda", "arch": "sm_80"}
    assert compiled_target(cuda) == cuda


#: The target of a board, its architecture, and the bytes of its vectors.
BOARDS = """
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"}        -> aarch64 16
    {"kind": "llvm", "mtriple": "arm64-apple-darwin", "mattr": ["+dotprod"]}   -> aarch64 16
    {"kind": "llvm", "mcpu": "x86-64-v4"}                                      -> x86_64 64
    {"kind": "llvm", "mcpu": "x86-64-v2", "mattr": ["+avx2"]}                  -> x86_64 16
    {"kind": "llvm", "mcpu": "x86-64", "mattr": ["+avx512f"]}                  -> x86_64 64
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}     -> aarch64 0
    {"kind": "llvm", "mtriple": "riscv64-linux-gnu"}                           -> riscv64 0
    {"kind": "cuda", "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}} -> aarch64 16
"""


@pytest.mark.parametrize(("target", "found"), rows(BOARDS))
def test_a_board_is_described_by_its_file(target: str, found: str) -> None:
    seen = remote_descriptor(remote_spec(json.loads(target)))
    assert (seen.host, f"{seen.arch} {seen.vector_bytes}") == ("box:9190/pi4", found)
    assert seen.ansor_params == (0, seen.vector_bytes, 0, 0, 0, 0, 0, 0)
    assert dict(seen.versions)["apache-tvm"]
    # The rest only a probe on the board could tell.
    stated = {"host", "arch", "vector_bytes", "versions", "ansor_params"}
    assert {name for name in Descriptor.__struct_fields__ if getattr(seen, name)} <= stated


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", 4.0)])
def test_the_quota_of_a_container_is_the_least_of_its_groups(
    tmp_path: Path, quota: str, cores: float
) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": quota}
    files["sys/fs/cgroup/a/b/cpu.max"] = "400000 100000\n"
    assert host.cpu_quota(write_tree(tmp_path, files)) == cores


ARM_TARGET = {"mcpu": "generic", "mtriple": "aarch64-linux-gnu"}


def test_a_host_that_keeps_the_spec_shows_no_difference_and_judges_no_device_elsewhere() -> None:
    assert differences(local_spec({"mcpu": "x86-64-v4"}), x86_host()) == []
    assert differences(local_spec(ARM_TARGET), arm_host()) == []
    assert differences(cuda_spec(), gpu_host(GPU)) == []
    board = replace(remote_spec({"kind": "llvm", "mcpu": "x86-64-v4"}), cores=(99,))
    assert differences(board, arm_host()) == []
    assert differences(replace(board, kind=DeviceKind.REPLAY, tracker="", key=""), arm_host()) == []


HOSTS = {"v4": x86_host(), "v3": x86_host(V3_FLAGS), "arm": arm_host(), "gpu": gpu_host(GPU)}
#: A host, a device's kind and target, and words of each sentence.
CONTRADICTIONS = """
    v3  cpu  {"mcpu": "x86-64-v4"} -> avx512bw avx512cd avx512dq avx512f avx512vl & set mcpu to 'x86-64-v3'
    arm cpu  {"mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod", "+sve"]} -> needs sve,
    arm cpu  {"mcpu": "x86-64-v2"}        -> x86_64 & aarch64
    v4  cpu  {"mcpu": "native"}           -> oldest
    v4  cuda {}                           -> 0 CUDA devices
    gpu cuda {"index": 1}                 -> CUDA device 1
    gpu cuda {"arch": "sm_90", "max_threads_per_block": 2048} -> target.arch is sm_90; write 1024
    v4  rpc  {"tracker": ""}              -> '' & host:port
    v4  rpc  {"tracker": "box"}           -> 'box' & host:port
    v4  rpc  {"tracker": "box:"}          -> 'box:' & host:port
    v4  rpc  {"tracker": "box:port"}      -> 'box:port' & host:port
    v4  rpc  {"tracker": "box:0"}         -> 'box:0' & host:port
    v4  rpc  {"tracker": "box:70000"}     -> 'box:70000' & host:port
    v4  rpc  {"tracker": ":9190"}         -> ':9190' & host:port
    v4  rpc  {"key": ""}                  -> key is missing
"""


def described(case: str) -> tuple[DeviceSpec, Descriptor]:
    host, kind, text = case.split(maxsplit=2)
    said = json.loads(text)
    if kind == "rpc":
        return remote_spec({"kind": "llvm"}, **said), HOSTS[host]
    return (local_spec(said) if kind == "cpu" else cuda_spec(**said)), HOSTS[host]


@pytest.mark.parametrize(
    ("spec", "seen", "sentences"),
    [
        *((*described(case), sentences) for case, sentences in rows(CONTRADICTIONS)),
        (
            local_spec({"mcpu": "x86-64"}, 3, (0, 1, 9)),
            x86_host(usable=(0, 1)),
            "core 9 & may use 0, 1 of 4; threads is 3",
        ),
    ],
)
def test_what_a_host_contradicts_is_said_in_a_sentence_each(
    spec: DeviceSpec, seen: Descriptor, sentences: str
) -> None:
    found = differences(spec, seen)
    for sentence, words in zip(found, sentences.split(";"), strict=True):
        assert all(word.strip() in sentence for word in words.split("&")), sentence


def test_instructions_that_a_board_lacks_are_named() -> None:
    spec = remote_spec({"kind": "llvm", "mcpu": "x86-64-v4"})
    [sentence] = board_differences(spec, replace(x86_host(V3_FLAGS), cpu_model="Board CPU"))
    assert "avx512f" in sentence
    assert "Board CPU" in sentence
    assert board_differences(remote_spec({"kind": "cuda"}), x86_host()) == []


@pytest.mark.tvm
def test_a_cpu_name_with_a_typing_error_is_found_by_llvm() -> None:
    (sentence,) = differences(local_spec({"mcpu": "znver44"}), x86_host())
    assert "znver44" in sentence
    assert "does not know" in sentence


COUNTS = st.lists(st.integers(0, 10**9), min_size=8, max_size=10)


@given(st.lists(COUNTS, min_size=1, max_size=6), st.data())
def test_steal_is_the_eighth_count_of_each_core(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], data: st.DataObject
) -> None:
    lines = [f"cpu{core} {' '.join(map(str, row))}" for core, row in enumerate(rows)]
    text = "\n".join(["cpu 1 1 1 1 1 1 1 999", *lines, "intr 5 6 7 8 9 10 11 12"])
    root = write_tree(tmp_path_factory.mktemp("root"), {"proc/stat": text})
    cores = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    assert host.steal_ticks(root, cores) == sum(rows[core][7] for core in cores)


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4\n", "cpu0 1 2 3 4 5 6 7 x\n"])
def test_a_kernel_that_counts_no_steal_is_no_zero(tmp_path: Path, text: str) -> None:
    assert host.steal_ticks(write_tree(tmp_path, {"proc/stat": text}), (0,)) is None
