"""What a Linux host tells about itself in `/proc` and `/sys`: plain readers, one file or folder each.

Called by `agents.host.probe` and `fleet.doctor.doctor`. Every reader takes the root of the file tree, so that
the files of another machine (an ARM board, a laptop) can be read as well. A file that is not there, as in
virtual machines and containers, gives the empty value of the type; nothing here knows of devices or targets.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Names of ARM cores by (implementer, part) of the MIDR register, from the cores' reference manuals.
_ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd04"): "Cortex-A35",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd09"): "Cortex-A73",
    ("0x41", "0xd0a"): "Cortex-A75",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd0d"): "Cortex-A77",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd44"): "Cortex-X1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x46", "0x001"): "A64FX",
    ("0x4e", "0x004"): "Carmel",
    ("0xc0", "0xac3"): "Ampere-1",
}

# Thermal sensors of the CPU; others (a Wi-Fi card, a battery) may take milliseconds to answer.
_CPU_SENSORS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal", "x86_pkg_temp", "soc_thermal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """What `/proc/cpuinfo` says about all CPUs together."""

    #: Model for people; several names joined by " + " where the cores are unlike.
    model: str
    #: Flags that every CPU has, sorted.
    flags: tuple[str, ...]
    #: Clock of each logical CPU in MHz; empty where the file does not give it (ARM).
    mhz: Mapping[int, float]
    #: (package, core) of each logical CPU; empty where the file does not give it (ARM).
    places: Mapping[int, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Cache sizes that one logical CPU sees, in bytes; 0 where the host does not say."""

    l1d: int = 0
    l2: int = 0
    l3: int = 0
    line: int = 0


def read_text(path: Path) -> str:
    """Read a small file of the kernel; empty if it is absent, forbidden or refuses to be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> float:
    """Read a file that holds one number; 0 if there is none."""
    try:
        return float(read_text(path))
    except ValueError:
        return 0.0


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list of CPUs (`0-3,8`); parts that are no numbers are left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def parse_cpuinfo(text: str) -> CpuInfo:
    """Read the text of `/proc/cpuinfo` of an x86 or ARM host."""
    models: list[str] = []
    board = ""
    flags: list[frozenset[str]] = []
    mhz: dict[int, float] = {}
    places: dict[int, tuple[str, str]] = {}
    for block in text.split("\n\n"):
        fields = _cpuinfo_fields(block)
        # Raspberry Pi kernels add the board's name after the last CPU.
        board = fields.get("Model", board)
        name = fields.get("model name") or _arm_core(fields)
        if name and name not in models:
            models.append(name)
        features = fields.get("flags", fields.get("Features"))
        if features is not None:
            flags.append(frozenset(features.split()))
        number = fields.get("processor", "")
        if not number.isdecimal():
            continue
        clock = fields.get("cpu MHz", "")
        if clock.replace(".", "", 1).isdecimal():
            mhz[int(number)] = float(clock)
        if "core id" in fields:
            places[int(number)] = (fields.get("physical id", "0"), fields["core id"])
    common = frozenset.intersection(*flags) if flags else frozenset()
    model = " + ".join(models)
    return CpuInfo(
        model=f"{model} ({board})" if model and board else model or board,
        flags=tuple(sorted(common)),
        mhz=mhz,
        places=places,
    )


def _cpuinfo_fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _arm_core(fields: Mapping[str, str]) -> str:
    if "CPU part" not in fields:
        return ""
    key = (fields.get("CPU implementer", ""), fields["CPU part"])
    return _ARM_PARTS.get(key, f"ARM core {key[0]}/{key[1]}")


def caches(root: Path, cpu: int) -> Caches:
    """Read the cache sizes of one logical CPU from sysfs."""
    sizes: dict[str, int] = {}
    line = 0
    for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, kind = read_text(index / "level"), read_text(index / "type")
        if kind == "Instruction":
            continue
        sizes[level] = max(sizes.get(level, 0), parse_size(read_text(index / "size")))
        line = max(line, int(read_number(index / "coherency_line_size")))
    return Caches(l1d=sizes.get("1", 0), l2=sizes.get("2", 0), l3=sizes.get("3", 0), line=line)


def parse_size(text: str) -> int:
    """Read a cache size of sysfs (`32K`, `1M`) to bytes; 0 if it is not one."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * factor if digits.isdecimal() else 0


def online_cpus(root: Path) -> tuple[int, ...]:
    """List the logical CPUs that are switched on."""
    return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online"))


def sibling_groups(root: Path, info: CpuInfo) -> tuple[tuple[int, ...], ...]:
    """Group the logical CPUs that share a physical core: one sorted tuple for each core, sorted.

    `/proc/cpuinfo` (`info`) tells it where sysfs has no topology.
    """
    groups: set[tuple[int, ...]] = set()
    for cpu in online_cpus(root):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        text = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        if text:
            groups.add(parse_cpu_list(text))
    if not groups:
        places: dict[tuple[str, str], list[int]] = {}
        for cpu, place in info.places.items():
            places.setdefault(place, []).append(cpu)
        groups = {tuple(sorted(cpus)) for cpus in places.values()}
    return tuple(sorted(groups))


def cpufreq(root: Path, cpu: int, name: str) -> str:
    """Read one file of a CPU's frequency control, such as `scaling_governor`; empty if hidden."""
    return read_text(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}")


def cpufreq_mhz(root: Path, cpu: int, name: str) -> float:
    """Read one clock of a CPU's frequency control in MHz (the kernel counts in kHz); 0 if hidden."""
    return read_number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}") / 1000


def turbo(root: Path) -> str:
    """Say whether the CPU may exceed its base clock: `on`, `off`, or empty where the host hides it."""
    cpus = root / "sys/devices/system/cpu"
    boost = read_text(cpus / "cpufreq/boost")
    if boost:
        return "on" if boost == "1" else "off"
    no_turbo = read_text(cpus / "intel_pstate/no_turbo")
    return {"0": "on", "1": "off"}.get(no_turbo, "")


def temperature_c(root: Path) -> float | None:
    """Read the hottest sensor of the CPU in degrees Celsius; None where there is none to read."""
    return max(_cpu_temperatures(root), default=None)


def _cpu_temperatures(root: Path) -> Iterator[float]:
    """Degrees Celsius of each sensor of the CPU."""
    files: list[Path] = []
    for zone in (root / "sys/class/thermal").glob("thermal_zone*"):
        kind = read_text(zone / "type").replace("-", "_")
        if kind in _CPU_SENSORS or kind.startswith("cpu"):
            files.append(zone / "temp")
    for monitor in (root / "sys/class/hwmon").glob("hwmon*"):
        if read_text(monitor / "name") in _CPU_SENSORS:
            files.extend(monitor.glob("temp*_input"))
    for sensor in files:
        text = read_text(sensor)
        if text.lstrip("-").isdecimal():
            yield int(text) / 1000


def steal_ticks(root: Path, cores: Collection[int]) -> int | None:
    """Read for how long the hypervisor ran something else while one of `cores` wanted to run.

    Returns:
        Ticks since boot (`os.sysconf("SC_CLK_TCK")` make a second), summed over the cores: only the
        difference of two readings says something. None where the kernel does not count them.
    """
    cpu_names = {f"cpu{core}" for core in cores}
    # The field's place is given in proc(5): user nice system idle iowait irq softirq steal.
    stolen = [
        int(words[8])
        for words in (line.split() for line in read_text(root / "proc/stat").splitlines())
        if words and words[0] in cpu_names and len(words) > 8 and words[8].isdecimal()
    ]
    return sum(stolen) if stolen else None


def memory_bytes(root: Path, field: str) -> int:
    """Read one field of `/proc/meminfo`, such as `MemTotal`, in bytes; 0 if it is not there."""
    for line in read_text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            digits = value.split()[0] if value.split() else ""
            return int(digits) * 1024 if digits.isdecimal() else 0
    return 0


def memory_pressure(root: Path) -> float | None:
    """Read the share of the last ten seconds in which something waited for memory (0..100, per cent).

    None where the kernel does not keep pressure figures.
    """
    for line in read_text(root / "proc/pressure/memory").splitlines():
        fields = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
        if line.startswith("some") and fields.get("avg10", "").replace(".", "", 1).isdecimal():
            return float(fields["avg10"])
    return None


def cuda_driver(root: Path) -> str:
    """Read the version of NVIDIA's kernel driver; empty where there is none."""
    first = read_text(root / "proc/driver/nvidia/version").partition("\n")[0]
    return next((word for word in first.split() if word[0].isdigit() and "." in word), "")


def cpu_quota(root: Path) -> float:
    """Read how many CPUs' worth of time the control groups of this process allow; infinity if unlimited."""
    quotas = [math.inf]
    for folder in _cgroup_folders(root, ""):
        words = read_text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
            quotas.append(int(words[0]) / max(1, int(words[1])))
    for folder in _cgroup_folders(root, "cpu"):
        quota = read_number(folder / "cpu.cfs_quota_us")
        if quota > 0:
            quotas.append(quota / max(1.0, read_number(folder / "cpu.cfs_period_us")))
    return min(quotas)


def memory_available_bytes(root: Path) -> int:
    """Read how much memory this process may still take, within its control groups; 0 if unknown."""
    free = memory_bytes(root, "MemAvailable")
    rooms = [free] if free else []
    files = {
        "": ("memory.max", "memory.current"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    }
    for controller, (limit_file, used_file) in files.items():
        for folder in _cgroup_folders(root, controller):
            limit = read_text(folder / limit_file)
            if limit.isdecimal():
                rooms.append(max(0, int(limit) - int(read_number(folder / used_file))))
    return min(rooms, default=0)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its ancestors; `controller` is empty for version 2."""
    mount = root / "sys/fs/cgroup" / controller
    own = ""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and ".." not in path:
            own = path.strip("/")
    folder = mount / own
    return [folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)]
