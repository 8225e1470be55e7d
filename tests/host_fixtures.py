"""File trees and descriptors of hosts other than this one."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from agents.host.rpc_tracker import TRACKER_MAGIC
from agents.records import Descriptor, DeviceId, DeviceKind, DeviceSpec, Family, canonical_json
from tests.record_fixtures import host_descriptor
from tests.table_fixtures import cells

V2_FLAGS = "fpu cx8 cmov mmx fxsr sse sse2 ht syscall lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
SANDYBRIDGE_FLAGS = f"{V2_FLAGS} pclmulqdq xsave avx"
V3_FLAGS = f"{SANDYBRIDGE_FLAGS} f16c fma movbe abm bmi1 avx2 bmi2"
V4_FLAGS = f"{V3_FLAGS} avx512f avx512dq avx512cd avx512bw avx512vl"
PI_FLAGS = "fp asimd evtstrm crc32 cpuid"
GRAVITON_FLAGS = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
)

PI_CPUINFO = "\n".join(
    f"""processor\t: {cpu}
BogoMIPS\t: 108.00
Features\t: {PI_FLAGS}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3
"""
    for cpu in range(4)
) + ("\nRevision\t: c03114\nSerial\t\t: 10000000abcdef01\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n")


def laptop_cpuinfo() -> str:
    """A laptop with two cores of two threads each: CPU 0 and 2 share one, 1 and 3 the other."""
    return "\n".join(
        f"""processor\t: {cpu}
vendor_id\t: GenuineIntel
model\t\t: 142
model name\t: Intel(R) Core(TM) i5-7200U CPU @ 2.50GHz
cpu MHz\t\t: {800 + cpu}.036
physical id\t: 0
core id\t\t: {cpu % 2}
flags\t\t: {V3_FLAGS}
"""
        for cpu in range(4)
    )


#: A file of that laptop a line, and what is in it: frequency control, caches, sensors, pressure...
_LAPTOP = r"""
proc/meminfo | MemTotal:  8048836 kB\nMemFree:  500000 kB\nMemAvailable:  3000000 kB
proc/pressure/memory | some avg10=1.25 avg60=0.40 total=5\nfull avg10=0.00 avg60=0 total=2
sys/devices/system/cpu/online | 0-3
sys/devices/system/cpu/intel_pstate/no_turbo | 0
sys/class/thermal/thermal_zone0/type | iwlwifi_1
sys/class/thermal/thermal_zone0/temp | 99000
sys/class/thermal/thermal_zone1/type | x86_pkg_temp
sys/class/thermal/thermal_zone1/temp | 61000
sys/class/hwmon/hwmon2/name | coretemp
sys/class/hwmon/hwmon2/temp2_input | 63500
"""
#: ...and of each of its CPUs: its number, that of its core and of the core's second thread.
_LAPTOP_CPU = """
topology/thread_siblings_list | {core},{sibling}
cpufreq/scaling_governor | powersave
cpufreq/scaling_cur_freq | 240{cpu}000
cpufreq/cpuinfo_min_freq | 400000
cpufreq/cpuinfo_max_freq | 3100000
cache/index0/level | 1
cache/index0/type | Data
cache/index0/size | 32K
cache/index0/coherency_line_size | 64
cache/index1/level | 1
cache/index1/type | Instruction
cache/index1/size | 64K
cache/index1/coherency_line_size | 64
cache/index2/level | 2
cache/index2/type | Unified
cache/index2/size | 256K
cache/index2/coherency_line_size | 64
cache/index3/level | 3
cache/index3/type | Unified
cache/index3/size | 3M
cache/index3/coherency_line_size | 64
"""


def laptop_files() -> dict[str, str]:
    """The files of that laptop by their paths."""
    files = {"proc/cpuinfo": laptop_cpuinfo()}
    files |= {path: text.replace("\\n", "\n") + "\n" for path, text in cells(_LAPTOP)}
    for cpu in range(4):
        of_cpu = cells(_LAPTOP_CPU.format(cpu=cpu, core=cpu % 2, sibling=cpu % 2 + 2))
        files |= {f"sys/devices/system/cpu/cpu{cpu}/{path}": f"{text}\n" for path, text in of_cpu}
    return files


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files under a root that stands for `/`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


GPU = {
    "index": "0",
    "name": "NVIDIA A100-SXM4-40GB",
    "uuid": "GPU-1",
    "arch": "sm_80",
    "max_threads_per_block": "1024",
    "max_shared_memory_per_block": "49152",
    "thread_warp_size": "32",
}


def x86_host(flags: str = V4_FLAGS, usable: tuple[int, ...] = (0, 1, 2, 3)) -> Descriptor:
    """An x86 box of four cores without SMT."""
    flagged = tuple(sorted(flags.split()))
    return replace(host_descriptor("box"), isa_flags=flagged, usable_cores=usable)


def arm_host(flags: str = GRAVITON_FLAGS) -> Descriptor:
    """A 64-bit Arm box of four cores."""
    return replace(x86_host(flags), arch="aarch64", vector_bytes=16)


def gpu_host(*devices: Mapping[str, str]) -> Descriptor:
    """The x86 box with CUDA devices."""
    return replace(x86_host(), cuda_devices=tuple(tuple(sorted(device.items())) for device in devices))


def local_spec(target: Mapping[str, object], threads: int = 1, cores: tuple[int, ...] = (0,)) -> DeviceSpec:
    """A device of kind `local` with an LLVM target."""
    return DeviceSpec(
        device_id=DeviceId("box-cpu"),
        kind=DeviceKind.LOCAL,
        family=Family.CPU,
        target_json=canonical_json({"kind": "llvm", "num-cores": threads, **target}),
        threads=threads,
        cores=cores,
    )


def cuda_spec(index: int = 0, **target: object) -> DeviceSpec:
    """A device of kind `cuda` as `fleet init` writes it for an A100."""
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return DeviceSpec(
        device_id=DeviceId(f"cuda-{index}"),
        kind=DeviceKind.CUDA,
        family=Family.GPU,
        target_json=canonical_json({"kind": "cuda", "arch": "sm_80", **limits, **target}),
        index=index,
    )


def write_generic_device(folder: Path) -> None:
    """Make a folder of device files with one device that every host can be, `generic`."""
    folder.mkdir(parents=True)
    (folder / "generic.yaml").write_text(
        "schema: 1\ndevice_id: generic\nkind: local\nfamily: cpu\ntarget: {kind: llvm, num-cores: 1}\n"
        "cores: [0]\n"
    )


#: What a tracker of RPC servers says first, before a framed answer.
GREETING = struct.pack("<i", TRACKER_MAGIC)


def framed(value: object) -> bytes:
    """A value as a tracker sends it."""
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Address of something that is no tracker; `answer` is called with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
