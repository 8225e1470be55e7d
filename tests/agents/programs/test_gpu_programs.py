"""What is special about programs of a GPU, as far as a host without one can tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agents.programs.build import build
from agents.programs.canaries import make_canaries
from agents.programs.link import LinkLostError, LocalLink
from agents.programs.timing import time_module
from agents.programs.workloads import own_module
from agents.records import Family, Protocol
from tests.host_fixtures import cuda_spec

CPU, CUDA, REMOTE = 1, 2, 128


class FakeDevice:
    """A device of a kind, whose driver answers until it is broken."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.is_broken = False

    def dlpack_device_type(self) -> int:
        return self.kind

    def sync(self) -> None:
        if self.is_broken:
            raise RuntimeError("CUDA Runtime Error: cudaErrorIllegalAddress (700)")


class FakeModule:
    """Takes a millisecond, and keeps how its evaluators were asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def get_function(self, name: str, query_imports: bool = False) -> Any:
        return lambda *arguments: None

    def time_evaluator(self, name: str, device: FakeDevice, *, repeat: int, **how: Any) -> Any:
        self.asked.append(how)
        return lambda *arguments: SimpleNamespace(results=[1e-3] * repeat)


@pytest.mark.parametrize(
    ("kind", "flush"),
    [
        (CUDA, {"cache_flush_bytes": 256 << 20}),
        (CPU + REMOTE, {"f_preproc": "cache_flush_cpu_non_first_arg"}),
    ],
)
def test_the_caches_of_the_right_processor_are_emptied(kind: int, flush: dict[str, Any]) -> None:
    flushed, plain = FakeModule(), FakeModule()
    time_module(flushed, [], FakeDevice(kind), Protocol(cache_flush=True))
    time_module(plain, [], FakeDevice(kind), Protocol())
    assert all(how == {"number": 1, **flush} for how in flushed.asked)
    assert all(how.keys() == {"number"} for how in plain.asked)


def test_a_device_that_a_program_broke_is_told_from_one_that_never_answered() -> None:
    device = FakeDevice(CUDA)
    link = LocalLink(device)
    with link.connect() as session:
        assert session.alive()
        device.is_broken = True
        assert not session.alive()
    with pytest.raises(LinkLostError, match="does not answer: CUDA Runtime Error"), link.connect():
        pass


@pytest.mark.tvm
def test_a_program_is_compiled_with_its_target_in_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's call of CUDA's compiler reads the architecture there, and else that of the host's GPU."""
    import tvm

    seen = []
    compile_program = tvm.tirx.build

    def spy(module: Any, target: Any) -> Any:
        seen.append(str(tvm.target.Target.current().attrs["arch"]))
        return compile_program(module, target=target)

    monkeypatch.setattr(tvm.tirx, "build", spy)
    canary = make_canaries(Family.GPU)[0]
    for arch in ("sm_75", "sm_90"):
        target = tvm.target.Target(cuda_spec(arch=arch).target)
        build(own_module(canary.workload), canary.candidate.trace, target)
    assert seen == ["sm_75", "sm_90"]
    assert tvm.target.Target.current() is None
