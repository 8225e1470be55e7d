"""What the gate of a GPU says of a repeat: by tables, and with readings and a probe that are given."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from agents.host import cuda
from agents.host.cuda import GpuMoment, GpuReader
from agents.programs.gate import Disturbance, Repeats
from agents.programs.gpu_gate import GpuGate, compiled_gpu_probe, gpu_disturbance
from tests.host_fixtures import cuda_spec
from tests.table_fixtures import rows

CALM = GpuMoment(sm_clock_mhz=1980, memory_clock_mhz=2619, throttle_reasons=("applications_clocks_setting",))


#: What the driver says before a repeat and behind it, whether the clock has fallen, and the disturbance.
READINGS = """
    | -> -
    gpu_idle | -> -
    sync_boost display_clock_setting 0x8000 | -> -
    | sw_power_cap -> throttled_power_cap
    hw_power_brake_slowdown | -> throttled_power_cap
    | sw_thermal_slowdown -> throttled_heat
    | hw_slowdown hw_thermal_slowdown -> throttled_heat
    | hw_slowdown -> throttled_hardware
    board_limit | -> throttled_hardware
    | reliability -> throttled_hardware
    | sw_power_cap fell -> throttled_power_cap
    | fell -> clock_fell
    | other_process -> other_gpu_process
    | other_process fell -> other_gpu_process
    other_process | -> -
"""


def throttled(*reasons: str) -> GpuMoment:
    return GpuMoment(sm_clock_mhz=1980, memory_clock_mhz=2619, throttle_reasons=reasons)


@pytest.mark.parametrize(("said", "disturbance"), rows(READINGS))
def test_what_the_driver_says_is_a_reason(said: str, disturbance: str) -> None:
    """Its reason explains a clock that fell; what another process computed before the repeat is over."""
    before, after = (
        replace(throttled(*words.split()), has_other_process="other_process" in words)
        for words in said.split("|")
    )
    found = gpu_disturbance(before, after, is_clock_near="fell" not in said)
    assert (found or "-") == disturbance


class Card:
    """A GPU with a clock of the wall, its own clocks, and a probe."""

    def __init__(self) -> None:
        self.now, self.probe_secs, self.moment = 0.0, 3e-5, CALM

    def probe(self) -> float:
        self.now += 0.5
        return self.probe_secs

    def gate(self) -> GpuGate:
        return GpuGate(self.probe, lambda: self.moment, clock=lambda: self.now)

    def fall_to(self, sm_clock_mhz: int, memory_clock_mhz: int = 2619) -> float:
        """A repeat after which the clocks are these."""
        self.moment = GpuMoment(sm_clock_mhz=sm_clock_mhz, memory_clock_mhz=memory_clock_mhz)
        return 2.0


def test_a_repeat_is_clean_if_clocks_and_probes_stay_near_their_best() -> None:
    card = Card()
    gate = card.gate()
    assert gate.repeat(lambda: 3.0) == Repeats((3.0,), (Disturbance.NONE,))
    assert gate.repeat(lambda: card.fall_to(1935)).clean == 1, "2 % are some steps of 15 MHz"
    assert gate.repeat(lambda: card.fall_to(1755)).disturbances == (Disturbance.CLOCK_FELL,)
    assert gate.repeat(lambda: card.fall_to(1980)).disturbances == (Disturbance.CLOCK_FELL,), "before it"
    assert gate.repeat(lambda: card.fall_to(1980, 810)).disturbances == (Disturbance.CLOCK_FELL,)
    card.fall_to(1980)
    card.probe_secs = 4e-5
    assert gate.repeat(lambda: 3.0).disturbances == (Disturbance.SLOW_GPU,)
    card.moment = throttled("sw_power_cap")
    assert gate.repeat(lambda: 3.0).disturbances == (Disturbance.POWER_CAP,), "it says why the GPU is slower"
    assert gate.best_secs == 3e-5


def test_without_the_driver_the_probe_alone_decides() -> None:
    card = Card()
    card.moment = GpuMoment()
    gate = card.gate()
    assert gate.repeat(lambda: 3.0).clean == 1
    card.probe_secs = 4e-5
    assert gate.repeat(lambda: 3.0).disturbances == (Disturbance.SLOW_GPU,)


class _NvmlError(Exception):
    pass


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The management library, with what it is asked here; `samples` are (process id, per cent)."""

    def utilisation(handle: str, since: int) -> list[SimpleNamespace]:
        assert since > 1.7e15, "microseconds since 1970"
        if not nvml.samples:
            raise _NvmlError  # as NVML does if there is none
        return [SimpleNamespace(pid=pid, smUtil=share) for pid, share in nvml.samples]

    nvml = SimpleNamespace(NVMLError=_NvmlError, nvmlDeviceGetProcessUtilization=utilisation, samples=[])
    monkeypatch.setattr(cuda, "_open_nvml", lambda: nvml)
    monkeypatch.setattr(cuda, "_nvml_handle", lambda index, setting: f"card {index}")
    monkeypatch.setattr(cuda, "gpu_state", lambda index: {"sm_clock_mhz": 1980, "throttle_reasons": ["x"]})
    return nvml


def test_a_reader_says_who_else_computes_there(library: SimpleNamespace) -> None:
    reader = GpuReader(0, "fleet-worker")
    assert reader() == GpuMoment(sm_clock_mhz=1980, throttle_reasons=("x",))
    first_process = 1  # no process of ours
    library.samples = [(first_process, 0)]
    assert not reader().has_other_process, "it holds memory there, and computes nothing"
    library.samples = [(first_process, 40)]
    assert reader().has_other_process
    assert not GpuReader(0, cuda.Path("/proc/1/comm").read_text().strip())().has_other_process
    library.samples = [(2**22 + 1, 40)]
    assert not reader().has_other_process, "in a container that may be this process under another number"


def test_why_clocks_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert cuda.reading_fault() == (
        "the Python package nvidia-ml-py is missing: pip install 'tensor-fleet[cuda]'"
    )
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "no driver" in cuda.reading_fault()
    monkeypatch.setattr(cuda, "_from_nvml", list)
    assert cuda.reading_fault() == ""


@pytest.mark.tvm
def test_the_probe_is_compiled_without_a_gpu() -> None:
    import tvm

    probe = compiled_gpu_probe(tvm.target.Target(cuda_spec().target), tvm.cuda(0))
    if not tvm.cuda(0).exist:
        with pytest.raises(Exception, match=r"CUDA|cuda|device"):
            probe()
    else:
        assert 1e-6 < min(probe() for _ in range(50)) < 1e-2
