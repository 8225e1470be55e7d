"""What the doctor finds, of hosts that are made up and of this one."""

from __future__ import annotations

import errno
import fcntl
import json
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest

from agents.host.probe import probe
from agents.records import Descriptor, DeviceId, DeviceKind
from agents.sandbox.confinement_trial import Aspect, Attempt, Means, Trial, try_confinement
from fleet.cli.app import run
from fleet.doctor.doctor import diagnose
from fleet.doctor.look import look
from fleet.doctor.words import Finding, HostState, Level, LockState, confinement_rows
from fleet.private_files import write_private
from fleet.store.store import Store
from tests.conftest import run_code
from tests.host_fixtures import (
    GPU,
    V4_FLAGS,
    cuda_spec,
    gpu_host,
    laptop_files,
    local_spec,
    write_tree,
    x86_host,
)
from tests.record_fixtures import make_record
from tests.scenario_fixtures import fields_of
from tests.table_fixtures import cells

QUIET = HostState(memory_available_bytes=8 << 30, disk_free_bytes=100 << 30)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    assert all((findings[0].what, findings[0].why, findings[0].do))
    return findings[0]


V3 = local_spec({"mcpu": "x86-64-v3"})
#: What of the state of a host is not quiet, the level of its only finding, and words of what, why and do.
FOUND = """
governors: [[0, powersave], [1, performance]]         | warning | powersave on 1 of 2 cores ... cpupower
load: 3.0                                             | warning | load is 3.0
cpu_quota: 1.5                                        | warning | 1.5 CPUs
turbo_file: /x/no_turbo                               | warning | echo 1 ... /x/no_turbo
turbo_file: /x/boost                                  | warning | echo 0 ... /x/boost
memory_available_bytes: 1073741824                    | warning | 1.0 GiB
disk_free_bytes: 1073741824, store: runs/store        | warning | runs/store
disk_free_bytes: 10485760                             | error   | 10 MiB
priority: usual                                       | note    | real-time priority ... disturbed ... rtprio
priority: nice                                        | note    | real-time priority
counts_switches: false                                | note    | does not count ... processor time
timing_lock: held                                     | note    | right now
timing_lock: refused, timing_lock_path: /x, timing_lock_fault: it is bob's | error | /x ... it is bob's
nvidia_driver: true                                   | warning | CUDA_VISIBLE_DEVICES
missing_modules: [tvm] | error | module tvm is missing ... pip install apache-tvm==
missing_modules: [xgboost] | error | module xgboost is missing ... pip install xgboost-cpu
missing_modules: [psutil] | warning | module psutil is missing ... pip install psutil
missing_modules: [cloudpickle] | warning | module cloudpickle ... pip install cloudpickle
missing_modules: [tornado] | warning | module tornado ... pip install tornado
unserved: [[pi4, "nobody serves it at box:9190: start it"]] | warning | pi4 ... box:9190 ... start it
"""
#: Likewise, of other hosts.
FOUND_ON: list[tuple[Descriptor, str, str, str]] = [
    (x86_host(usable=(0,)), "", "warning", "1 core"),
    (x86_host(f"{V4_FLAGS} hypervisor"), "", "note", "virtual machine"),
    (
        gpu_host(GPU),
        "cuda_compiler_fault: none is at /opt/cuda",
        "warning",
        "cannot be compiled ... /opt/cuda",
    ),
    (gpu_host(GPU), "missing_modules: [pynvml], nvidia_driver: true", "warning", "nvidia-ml-py"),
    (msgspec.structs.replace(x86_host(), versions=(("apache-tvm", "0.28.0"),)), "", "warning", "0.28.0"),
    *((x86_host(), *line) for line in cells(FOUND)),  # type: ignore[misc]
]


def state_of(changes: str) -> HostState:
    """A quiet host but for some changes, written as YAML."""
    values = fields_of(changes)
    if "timing_lock" in values:
        values["timing_lock"] = LockState(values["timing_lock"])
    return replace(QUIET, **values)


@pytest.mark.parametrize(("host", "changes", "level", "words"), FOUND_ON)
def test_what_spoils_measurements_is_found(host: Descriptor, changes: str, level: str, words: str) -> None:
    found = only(diagnose(host, [], state_of(changes)))
    assert found.level is Level(level)
    assert all(word in f"{found.what} {found.why} {found.do}" for word in words.split(" ... "))


#: What changes nothing.
GOOD = """
load: 1.9
governors: [[0, performance]]
cpu_quota: 4.0
missing_modules: [pynvml]
"""


def test_a_good_host_has_no_findings() -> None:
    several = [local_spec({"mcpu": level}) for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4")]
    for changes in GOOD.splitlines():
        assert diagnose(x86_host(), several, state_of(changes)) == [], changes


def test_a_sibling_that_would_build_beside_the_timed_thread_is_found() -> None:
    state = replace(QUIET, core_groups=((0, 2), (1, 3)))
    found = only(diagnose(x86_host(), [V3], state))
    assert "CPU 2 " in found.what
    assert "taskset -c 0,1,3" in found.do
    assert diagnose(x86_host(usable=(0, 1, 3)), [V3], state) == []
    # Neither a replay nor a board behind a wire times on this host's cores.
    assert diagnose(x86_host(), [msgspec.structs.replace(V3, kind=DeviceKind.REPLAY)], state) == []
    board = msgspec.structs.replace(V3, kind=DeviceKind.RPC, tracker="box:9190", key="pi4")
    assert diagnose(x86_host(), [board], state) == []


def attempt(aspect: Aspect, what: str, by: Means, is_refused: bool = True) -> Attempt:
    return Attempt(aspect=aspect, what=what, by=by, is_refused=is_refused)


WRITE = attempt(Aspect.FILES, "write", Means.LANDLOCK)
KILL = attempt(Aspect.PROCESSES, "kill", Means.FILTER)


def test_how_far_worker_processes_are_confined_is_a_table_and_what_would_make_it_better_a_finding() -> None:
    trial = Trial(landlock=7, has_filter=True, attempts=(WRITE, KILL))
    assert diagnose(x86_host(), [], replace(QUIET, confinement=trial)) == []
    files, network, _, processes = confinement_rows(trial)
    assert (files.aspect, files.refused, files.tried) == (Aspect.FILES, ("write",), 1)
    assert (files.by, files.missing, processes.by) == (("Landlock 7",), (), ("filter of system calls",))
    assert network.tried == 0
    bare = Trial(landlock=0, has_filter=False, attempts=(replace(WRITE, is_refused=False), KILL))
    found = only(diagnose(x86_host(), [], replace(QUIET, confinement=bare)))
    assert (found.level, found.what) == (Level.WARNING, "worker processes can write")
    assert all(word in found.do for word in ("Landlock", "SECCOMP"))
    assert next((row.by, row.missing) for row in confinement_rows(bare)) == ((), ("write",))
    half = replace(QUIET, confinement=replace(bare, has_filter=True))
    assert "SECCOMP" not in only(diagnose(x86_host(), [], half)).do
    unknown = replace(QUIET, confinement="it did not answer")
    assert only(diagnose(x86_host(), [], unknown)).why == "it did not answer"


def test_a_scratch_folder_in_memory_is_a_gap_in_the_row_of_memory() -> None:
    trial = Trial(landlock=7, has_filter=True, attempts=(), memory_folder="/tmp")
    found = only(diagnose(x86_host(), [], replace(QUIET, confinement=trial)))
    assert "fill memory with files in /tmp" in found.what
    assert "TMPDIR" in found.do
    gaps = [row.aspect for row in confinement_rows(trial) if row.missing]
    assert gaps == [Aspect.MEMORY]


@pytest.mark.usefixtures("unconfined")
def test_a_temporary_folder_from_which_no_library_can_be_loaded_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look(tmp_path).temporary_fault == ""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("agents.sandbox.scratch.mmap.mmap", _refuse)
    found = only(diagnose(x86_host(), [], replace(QUIET, temporary_fault=look(tmp_path).temporary_fault)))
    assert str(tmp_path) in found.what
    assert found.do.startswith("set TMPDIR to")


def _refuse(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_security_promises_what_is_tried() -> None:
    """Its table has a row for each aspect: what was tried, in this order, and by what it is refused."""
    trial = try_confinement()
    lines = (Path(__file__).parents[3] / "SECURITY.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    promised = {row[0]: row[1:] for row in cells if row[0] in set(Aspect)}
    assert list(promised) == list(Aspect)
    for aspect, (what, by, tests) in promised.items():
        tried = [one for one in trial.attempts if one.aspect == aspect]
        assert what.split("; ") == [one.what for one in tried]
        assert by.split(", ") == [means for means in Means if means in {one.by for one in tried}]
        assert "test_confinement.py" in tests


CARD = {**GPU, "clock_max_mhz": "1410", "pci_bus_id": "00000000:07:00.0", "persistence_mode": "on"}


#: What is seen of a GPU, what of its card is another, the level of the finding and a word of it.
UNSTEADY = """
throttle_reasons: [hw_thermal_slowdown]         |                         | warning | hw_thermal_slowdown
utilisation: 80                                 |                         | warning | 80 %
sm_clock_mhz: 210, throttle_reasons: [gpu_idle] |                         | note    | 210 of 1410 MHz
sm_clock_mhz: 1410                              | persistence_mode: "off" | note    | persistence
"""


@pytest.mark.parametrize(("seen", "card", "level", "word"), cells(UNSTEADY))
def test_a_gpu_that_gives_unsteady_numbers_is_found(seen: str, card: str, level: str, word: str) -> None:
    host = gpu_host({**CARD, **fields_of(card)})
    found = only(diagnose(host, [cuda_spec()], replace(QUIET, gpus=((0, fields_of(seen)),))))
    assert found.level is Level(level)
    assert word in found.what
    # The number that nvidia-smi counts by may be another one.
    assert "-i 00000000:07:00.0" in found.do
    locked = {"sm_clock_mhz": 1200, "utilisation": 0, "throttle_reasons": ["applications_clocks_setting"]}
    assert diagnose(gpu_host(CARD), [cuda_spec()], replace(QUIET, gpus=((0, locked),))) == []


@pytest.mark.parametrize(
    ("version", "crashes"), [("0.1.14.post0", False), ("0.1.15", True), ("0.1.15.post1", True), ("0.2", True)]
)
def test_a_foreign_function_layer_that_crashes_is_an_error(version: str, crashes: bool) -> None:
    host = msgspec.structs.replace(x86_host(), versions=(("apache-tvm-ffi", version),))
    found = diagnose(host, [], QUIET)
    assert [finding.level for finding in found] == ([Level.ERROR] if crashes else [])
    assert all("apache-tvm-ffi==0.1.14.post0" in finding.do for finding in found)


def test_devices_that_are_refused_for_one_reason_share_a_finding_and_the_worst_comes_first() -> None:
    specs = [
        msgspec.structs.replace(local_spec({"mcpu": "x86-64-v2"}, cores=(9,)), device_id=DeviceId(name))
        for name in "ab"
    ]
    shared = only(diagnose(x86_host(), specs, QUIET))
    assert (shared.level, "devices a, b cannot" in shared.what) == (Level.NOTE, True)
    assert "CUDA device 3" in str(only(diagnose(gpu_host(GPU), [cuda_spec(index=3)], QUIET)))
    state = replace(QUIET, missing_modules=("pynvml", "tornado", "tvm"), nvidia_driver=True)
    levels = [finding.level for finding in diagnose(gpu_host(GPU), [], state)]
    assert levels == [Level.ERROR, Level.WARNING, Level.WARNING]


def test_this_host_can_be_looked_at_and_judged(tmp_path: Path) -> None:
    state = look(tmp_path / "not/there/yet")
    assert state.disk_free_bytes > 0
    assert state.memory_available_bytes > 0
    assert "tvm" not in state.missing_modules
    assert isinstance(state.confinement, Trial)
    assert all(finding.level is not Level.ERROR for finding in diagnose(probe(), [], state))


@pytest.mark.usefixtures("unconfined")
def test_a_laptop_is_looked_at(tmp_path: Path) -> None:
    state = look(tmp_path, write_tree(tmp_path, laptop_files()))
    assert state.turbo_file == "/sys/devices/system/cpu/intel_pstate/no_turbo"
    assert (state.nvidia_driver, state.gpus, state.unserved) == (False, (), ())


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried of a worker process, which takes a second."""
    nothing = Trial(landlock=0, has_filter=False, attempts=())
    monkeypatch.setattr("fleet.doctor.look.try_confinement", lambda: nothing)


@pytest.mark.usefixtures("unconfined")
def test_a_fleet_that_times_meanwhile_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "timing.lock"
    monkeypatch.setattr("fleet.doctor.look.host_lock_path", lambda: path)
    assert look(tmp_path).timing_lock is LockState.FREE
    assert not path.exists()
    path.touch()
    assert look(tmp_path).timing_lock is LockState.FREE
    with path.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert look(tmp_path).timing_lock is LockState.HELD
    path.unlink()
    path.symlink_to(path)  # a loop cannot be opened
    state = look(tmp_path)
    assert (state.timing_lock, state.timing_lock_path) == (LockState.REFUSED, str(path))
    assert str(path) in state.timing_lock_fault


@pytest.mark.usefixtures("unconfined")
def test_boards_are_asked_for_at_their_trackers_and_gpus_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = {("box:9190", "pi4"): "", ("box:9190", "pi5"): "nobody serves it: start it"}
    monkeypatch.setattr("fleet.doctor.look.served", lambda tracker, key: sentences[tracker, key])
    board = msgspec.structs.replace(local_spec({}), kind=DeviceKind.RPC, tracker="box:9190", key="pi4")
    # Without an address its file is at fault, which `differences` says.
    specs = [
        board,
        msgspec.structs.replace(board, key="pi5"),
        msgspec.structs.replace(board, tracker=""),
        msgspec.structs.replace(board, key=""),
    ]
    states = {0: {"sm_clock_mhz": 1410}, 2: {}}
    monkeypatch.setattr("fleet.doctor.look.gpu_state", states.__getitem__)
    state = look(tmp_path, specs=[*specs, cuda_spec(), cuda_spec(), cuda_spec(index=2), local_spec({})])
    assert state.unserved == (("box-cpu", "nobody serves it: start it"),)
    assert state.gpus == ((0, {"sm_clock_mhz": 1410}),)


def test_looking_loads_no_tvm() -> None:
    code = (
        "import sys; from pathlib import Path; from fleet.doctor.look import look; look(Path('.')); "
        "print([name for name in ('tvm', 'torch', 'ray') if name in sys.modules])"
    )
    assert run_code(code) == "[]\n"


@pytest.mark.usefixtures("unconfined")
def test_a_folder_of_rays_sockets_that_others_can_reach_is_found(tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.mkdir()
    ray.chmod(0o777)
    found = only(diagnose(x86_host(), [], replace(QUIET, exposed=look(tmp_path, ray_folder=ray).exposed)))
    assert found.level is Level.WARNING
    assert found.what.startswith(f"{ray}: every user may replace")
    ray.chmod(0o700)
    assert look(tmp_path, tokens=[tmp_path / "none"], ray_folder=ray).exposed == ()


#: A device, the measuring code of its records, what their canaries read, and words of what is found.
MIXED_CODE = """
mixed   | aa bb    |                | no canary was read under both ... fleet collect --remeasure 50
same    | aa aa -  |                |
steady  | aa aa bb | 1.0 1.02 1.015 | its canaries differ by 0.5% ... nothing
shifted | aa bb    | 1.0 1.1        | its canaries differ by 10 ... fleet collect --remeasure 50
"""


def test_records_of_different_measuring_code_in_one_environment_are_reported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        for device, codes, canaries, _ in cells(MIXED_CODE):
            for number, (code, ratio) in enumerate(zip_longest(codes.split(), canaries.split())):
                environment = "{}" if code == "-" else f'{{"load":[1],"measuring_code":"{code}"}}'
                quality = f'{{"canary":{{"a":{ratio},"b":{ratio}}}}}' if ratio else "{}"
                changes = {"environment": environment, "quality": quality}
                store.append([make_record(number, device=device, **changes)])
    mixed = look(tmp_path / "store").mixed_code
    findings = {f.what.split()[2]: f for f in diagnose(x86_host(), [], replace(QUIET, mixed_code=mixed))}
    assert findings.keys() == {"mixed", "steady", "shifted"}
    assert {finding.level for finding in findings.values()} == {Level.NOTE}
    for device, _, _, words in cells(MIXED_CODE):
        assert all(word in str(findings.get(device)) for word in words.split(" ... ")), findings
    assert look(tmp_path).mixed_code == ()


@pytest.mark.usefixtures("unconfined")
def test_the_verb_looks_at_both_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_DAEMON__ROOT", str(tmp_path / "fleet"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ray_token"))
    (tmp_path / "fleet").mkdir()
    paths = (tmp_path / "fleet" / "api.token", tmp_path / "ray_token")

    def advice() -> dict[str, str]:
        run(["doctor", "--json"])
        return {one["what"]: one["do"] for one in json.loads(capsys.readouterr().out)["findings"]}

    for path in paths:
        write_private(path, "a token of the test")
    assert "others may read" not in " ".join(advice())
    for path in paths:
        path.chmod(0o640)
    found = advice()
    for path in paths:
        assert found[f"{path}: others may read this token (mode 640)"] == f"run: chmod 600 {path}"
