"""What a device is: as its YAML claims it, and as the probe saw it.

`agents.records` offers it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NewType

from msgspec.structs import replace

from agents.protocol import Protocol
from agents.values import Value

DeviceId = NewType("DeviceId", str)

#: Order of Ansor's eight hardware parameters (`HardwareParams` of its record format v0.6).
ANSOR_HARDWARE_PARAMS = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)


class DeviceKind(StrEnum):
    """How a device is reached."""

    LOCAL = "local"
    CUDA = "cuda"
    RPC = "rpc"
    REPLAY = "replay"


class Family(StrEnum):
    """Devices that may share a backbone: published work finds no transfer across families."""

    CPU = "cpu"
    GPU = "gpu"


class Replay(Value, frozen=True, kw_only=True):
    """What a device of kind `replay` answers from (`docs/replay.md`)."""

    #: Path of the records: a store, or a Parquet file that was exported from one.
    records: str
    #: The device whose records are answered.
    device: DeviceId
    #: Of every draw.
    seed: int = 0
    #: Draw among the recorded measurements and their repeats, instead of the record that counts.
    noise: bool = False
    #: Offer candidates that failed, and let a candidate fail or be lost as often as it did.
    failures: bool = False


class DeviceSpec(Value, frozen=True, kw_only=True):
    """What the YAML of one device claims."""

    #: Name of the device; also the file name of its YAML.
    device_id: DeviceId
    kind: DeviceKind
    family: Family
    #: TVM target as a JSON dictionary, canonical text (a plain `str` keeps the value hashable).
    target_json: str
    #: Threads a measured program may use.
    threads: int = 1
    #: Logical CPUs that timing is pinned to; its length is at least `threads`.
    cores: tuple[int, ...] = (0,)
    #: Index of the device among those of its kind (CUDA ordinal); 0 for a CPU.
    index: int = 0
    #: Address (`host:port`) of the TVM RPC tracker, and the key of the device there; empty unless `rpc`.
    tracker: str = ""
    key: str = ""
    #: Changes to the fleet's protocol for this device: (field, value), sorted by field.
    protocol_changes: tuple[tuple[str, float], ...] = ()
    #: Recorded results that it answers from; None unless `replay`.
    replay: Replay | None = None
    #: Free text for people.
    note: str = ""

    @property
    def target(self) -> dict[str, Any]:
        """The TVM target as a fresh dictionary."""
        value = json.loads(self.target_json)
        assert isinstance(value, dict)
        return value

    def protocol(self, common: Protocol) -> Protocol:
        """The fleet's protocol with this device's changes."""
        changes: dict[str, Any] = {
            name: type(getattr(common, name))(value) for name, value in self.protocol_changes
        }
        return replace(common, **changes)


class Descriptor(Value, frozen=True, kw_only=True):
    """What the probe saw on the host of one device. Bytes and MHz; 0 and empty mean unknown."""

    host: str
    arch: str = ""
    cpu_model: str = ""
    physical_cores: int = 0
    logical_cores: int = 0
    #: Logical CPUs this process may use.
    usable_cores: tuple[int, ...] = ()
    isa_flags: tuple[str, ...] = ()
    #: Widest vector register the CPU offers, in bytes.
    vector_bytes: int = 0
    l1d_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    cache_line_bytes: int = 0
    memory_bytes: int = 0
    clock_min_mhz: float = 0.0
    clock_max_mhz: float = 0.0
    clock_now_mhz: float = 0.0
    #: Frequency governor; empty where the host hides it (virtual machines).
    governor: str = ""
    #: True where two logical CPUs share a core.
    smt: bool = False
    kernel: str = ""
    #: Versions of what makes and runs the programs: tvm, llvm, python, driver...
    versions: tuple[tuple[str, str], ...] = ()
    #: Ansor's eight hardware parameters, in the order of `ANSOR_HARDWARE_PARAMS`.
    ansor_params: tuple[int, ...] = (0,) * len(ANSOR_HARDWARE_PARAMS)
    #: One mapping a CUDA device, as sorted (name, value) pairs; empty where there is none.
    cuda_devices: tuple[tuple[tuple[str, str], ...], ...] = ()
    #: The same of AMD's GPUs.
    rocm_devices: tuple[tuple[tuple[str, str], ...], ...] = ()
    #: What the canaries measured, as sorted (name, value) pairs (`agents.programs.canaries.roofline`); empty
    #: before the first reading.
    roofline: tuple[tuple[str, float], ...] = ()
