"""AMD's GPUs of this host, through the programs that ROCm brings: `rocminfo` and `rocm-smi`.

Called by `agents.host.probe`. No library of ROCm is loaded; a host without it simply has no such devices.
Fields of `rocminfo` are those of the HSA runtime (ROCm documentation, "rocminfo").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from agents.host.cuda import program_output
from agents.host.gpu_sheets import gpu_sheet

#: Lanes of 32-bit multiply-adds that a compute unit has a cycle, by the beginning of its architecture (AMD
#: Instinct and RDNA instruction set guides): wave32 units issue two at once since RDNA 3, CDNA 3 has packed
#: ones.
_LANES = (("gfx11", 128), ("gfx12", 128), ("gfx94", 128), ("gfx95", 128), ("", 64))
_MOST_DEVICES = 64


def rocm_devices(run: Callable[[Sequence[str]], str] = program_output) -> tuple[dict[str, str], ...]:
    """List the AMD GPUs that a program of this process would see.

    Args:
        run: Runs a program and gives its output, empty where it is absent or fails.

    Returns:
        One mapping a device, as of `agents.host.cuda.cuda_devices`: `index` (order of the HSA runtime, which
        obeys `ROCR_VISIBLE_DEVICES`), `name`, `uuid`, `arch` (`gfx90a`), `compute_units`, `clock_max_mhz`,
        `memory_bytes`, `l2_bytes`, `shared_bytes_per_unit`, `thread_warp_size`, `max_threads_per_block`,
        `max_shared_memory_per_block`, `peak_flops`, `pci_bus_id`, `driver`, and what `gpu_sheet` has beside
        them. Unknown values are left out.
    """
    devices = [_device(agent) for agent in _agents(run(("rocminfo",)))][:_MOST_DEVICES]
    if not devices:
        return ()
    driver = _driver(run(("rocm-smi", "--showdriverversion", "--json")))
    return tuple(
        {
            **gpu_sheet(device.get("name", "")),
            **device,
            "index": str(index),
            **({"driver": driver} if driver else {}),
        }
        for index, device in enumerate(devices)
    )


class _Agent(dict[str, str]):
    """Fields of one agent of `rocminfo`, and those of each of its memory pools."""

    def __init__(self) -> None:
        super().__init__()
        self.pools: list[dict[str, str]] = []


def _agents(text: str) -> Iterator[_Agent]:
    """GPUs in the text of `rocminfo`: blocks that begin with `Agent N`, one field a line."""
    for block in re.split(r"(?m)^Agent \d+\s*$", text)[1:]:
        agent = _Agent()
        fields: dict[str, str] = agent
        for line in block.splitlines():
            key, colon, value = line.strip().partition(":")
            if re.fullmatch(r"Pool \d+", key):
                fields = {}
                agent.pools.append(fields)
            elif key.startswith("ISA Info"):
                break
            elif colon and value.strip():
                # The first of a name counts: nested blocks repeat some.
                fields.setdefault(key.strip(), value.strip())
        if agent.get("Device Type") == "GPU":
            yield agent


def _device(agent: _Agent) -> dict[str, str]:
    units, clock = _whole(agent, "Compute Unit"), _whole(agent, "Max Clock Freq. (MHz)")
    arch = agent.get("Name", "")
    lanes = next(count for beginning, count in _LANES if arch.startswith(beginning))
    shared = _pool_bytes(agent, "GROUP")
    properties = {
        "name": agent.get("Marketing Name", ""),
        "uuid": agent.get("Uuid", ""),
        "arch": arch,
        "compute_units": units,
        "clock_max_mhz": clock,
        "peak_flops": 2 * lanes * units * clock * 10**6,
        "memory_bytes": _pool_bytes(agent, "GLOBAL"),
        "l2_bytes": _whole(agent, "L2") << 10,
        "shared_bytes_per_unit": shared,
        "max_shared_memory_per_block": shared,
        "thread_warp_size": _whole(agent, "Wavefront Size"),
        "max_threads_per_block": _whole(agent, "Workgroup Max Size"),
        "pci_bus_id": _bus(_whole(agent, "Domain"), _whole(agent, "BDFID")),
    }
    return {name: str(value) for name, value in properties.items() if value}


def _whole(fields: dict[str, str], name: str) -> int:
    """The first whole number of a field, such as 64 of `64(0x40) KB`; 0 where there is none."""
    match = re.match(r"\d{1,15}", fields.get(name, ""))
    return int(match[0]) if match else 0


def _pool_bytes(agent: _Agent, segment: str) -> int:
    """Size of the largest pool of a kind; `rocminfo` gives them in KB."""
    sizes = [
        _whole(pool, "Size") << 10 for pool in agent.pools if pool.get("Segment", "").startswith(segment)
    ]
    return max(sizes, default=0)


def _bus(domain: int, place: int) -> str:
    """PCI address of bus, device and function in one number, as `rocm-smi` writes it."""
    return f"{domain:04X}:{place >> 8:02X}:{place >> 3 & 31:02X}.{place & 7}" if place else ""


def _driver(text: str) -> str:
    """Version of the kernel driver in an answer of `rocm-smi --json`; warnings may stand in front of it."""
    try:
        system = json.loads(text[text.index("{") :])["system"]
        return str(system["Driver version"])[:64]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
