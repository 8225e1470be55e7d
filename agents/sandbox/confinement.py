"""How a worker process is confined before it meets a candidate, as far as the kernel has the means.

Called by `zygote.py` in each process that it forks, and by `confinement_trial.py`, which tries it out. Four
means, each by itself: no new privileges, no capabilities, Landlock for files, and a filter of system calls.
No file that it writes grows beyond a bound, and few are open. Its agent bounds its memory and its threads
(`footprint.py`). Reading files, and using up time, or disk by many files, are not kept from a worker process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import resource
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.sandbox.stages import ChildSettings
from agents.sandbox.syscall_filter import Needs, call_number, filter_program, is_known

#: A program that prints without end would fill the disk before its time is over.
MOST_FILE_BYTES = 256 << 20
#: The kernel keeps memory for each open file, which belongs to no process.
_MOST_FILES = 4096

# Numbers of `prctl`.
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 38, 39, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
#: The one capability that is kept: root reads files of other users, such as this program in one's home.
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522
_SECCOMP_SET_FILTER, _SECCOMP_SPEC_ALLOW = 1, 4

# Landlock's rights. Those of reading and of starting programs are left to everybody.
_WRITE, _TRUNCATE, _DEVICE, _REFER = 1 << 1, 1 << 14, 1 << 15, 1 << 13
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_LINK = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_MAKE_OTHERS = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_ALL_SCRATCH = (
    _WRITE | _TRUNCATE | _REFER | _REMOVE_FOLDER | _REMOVE_FILE | _MAKE_FOLDER | _MAKE_FILE | _MAKE_LINK
)
#: What each version of Landlock (ABI) knows beyond the one before.
_FILE_RIGHTS = {1: _ALL_SCRATCH & ~_REFER & ~_TRUNCATE | _MAKE_OTHERS, 2: _REFER, 3: _TRUNCATE, 5: _DEVICE}
_BIND_TCP, _CONNECT_TCP = 1, 2
_NETWORK_ABI = 4
#: Signals to, and abstract local sockets of, processes outside.
_SCOPES, _SCOPES_ABI = 3, 6
_RULE_BENEATH = 1

#: Below /dev: what drivers of GPUs open for writing.
_GPU_FILES = ("nvidia*", "nvidia-caps/*", "nvgpu/*/*", "nvhost*", "nvmap", "dri/*")
#: CUDA writes the names of its threads below it, and does not start where it may not.
_OWN_THREADS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What confines a process."""

    #: Version of Landlock that was applied; 0 if none was.
    landlock: int
    #: Whether the filter of system calls was applied.
    has_filter: bool


def needs_of(settings: ChildSettings) -> Needs:
    """What the worker processes of a device must be able to do."""
    is_remote = bool(settings.tracker)
    programs = is_remote or settings.target.get("kind") != "llvm"
    gpu = settings.gpu_index is not None
    return Needs(programs=programs, network=is_remote, gpu=gpu, shared_files=programs)


def confine(scratch: Path | None, needs: Needs, most_file_bytes: int = MOST_FILE_BYTES) -> Confinement:
    """Confine this process, which has one thread, and all that it will start; takes about 1 ms.

    Args:
        scratch: The one folder in which it may write; None for none.
        needs: What it must be able to do besides.
        most_file_bytes: Size that no file it writes grows beyond.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    limits = (
        (resource.RLIMIT_FSIZE, most_file_bytes),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_CORE, 0),
    )
    for limit, most in limits:
        _, hard = resource.getrlimit(limit)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (least, least))
    landlock = 0
    try:
        landlock = _restrict_files(scratch, needs)
    except OSError as error:
        _warn("Landlock", error)
    try:
        has_filter = _filter_calls(needs)
    except OSError as error:
        _warn("the filter of system calls", error)
        has_filter = False
    return Confinement(landlock=landlock, has_filter=has_filter)


def landlock_version() -> int:
    """Version of Landlock (ABI) that the kernel has and uses; 0 for none."""
    try:
        return system_call(call_number("landlock_create_ruleset"), 0, 0, 1)
    except OSError:
        return 0


def has_privileges() -> bool:
    """Whether this process has capabilities beyond reading, or programs that it starts may gain some."""
    return _prctl(_PR_GET_NO_NEW_PRIVS) != 1 or bool(_capabilities() & ~(1 << _CAP_DAC_READ_SEARCH))


def system_call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make a system call.

    Raises:
        OSError: It failed.
    """
    values: list[Any] = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    values += [ctypes.c_long(0)] * (6 - len(values))
    result: int = _libc().syscall(ctypes.c_long(number), *values)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _restrict_files(scratch: Path | None, needs: Needs) -> int:
    version = landlock_version()
    if not version:
        return 0
    files = functools.reduce(int.__or__, (bits for since, bits in _FILE_RIGHTS.items() if since <= version))
    network = _BIND_TCP | (0 if needs.network else _CONNECT_TCP)
    attributes = struct.pack("=QQQ", files, network, _SCOPES)
    size = 24 if version >= _SCOPES_ABI else 16 if version >= _NETWORK_ABI else 8
    rules = system_call(call_number("landlock_create_ruleset"), attributes, size, 0)
    try:
        if scratch is not None:
            _allow(rules, scratch, _ALL_SCRATCH & files)
        _allow(rules, Path(os.devnull), _WRITE)
        if needs.gpu:
            for path in {path for pattern in _GPU_FILES for path in Path("/dev").glob(pattern)}:
                if path.is_char_device():
                    _allow(rules, path, (_WRITE | _DEVICE) & files)
            # The kernel may forget an entry of /proc that nobody holds, and the rule with it.
            os.open(_OWN_THREADS, os.O_PATH | os.O_CLOEXEC)
            _allow(rules, _OWN_THREADS, (_WRITE | _TRUNCATE) & files)
        system_call(call_number("landlock_restrict_self"), rules, 0)
    finally:
        os.close(rules)
    return version


def _allow(rules: int, path: Path, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        system_call(
            call_number("landlock_add_rule"), rules, _RULE_BENEATH, struct.pack("=Qi", rights, handle), 0
        )
    finally:
        os.close(handle)


def _filter_calls(needs: Needs) -> bool:
    machine = os.uname().machine
    if not is_known(machine):
        return False
    seccomp = call_number("seccomp")
    program = filter_program(machine, os.getpid(), needs)
    held = ctypes.create_string_buffer(program, len(program))
    instructions = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    try:
        # Without this flag older kernels switch off the CPU's speculation: programs would run slower.
        system_call(seccomp, _SECCOMP_SET_FILTER, _SECCOMP_SPEC_ALLOW, instructions)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 4.17 there was neither
            raise
        system_call(seccomp, _SECCOMP_SET_FILTER, 0, instructions)
    return True


def _drop_capabilities() -> None:
    if not is_known(os.uname().machine):
        return
    for capability in range(64):
        if capability != _CAP_DAC_READ_SEARCH and _prctl(_PR_CAPBSET_DROP, capability):
            break  # not root, or there are no more
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    retained = _capabilities() & 1 << _CAP_DAC_READ_SEARCH
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    system_call(call_number("capset"), header, struct.pack("=6I", retained, retained, 0, 0, 0, 0))


def _capabilities() -> int:
    """The effective capabilities of this process, as bits."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    system_call(call_number("capget"), header, held)
    low, _, _, high, _, _ = struct.unpack("=6I", held.raw)
    return int(low | high << 32)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _prctl(option: int, argument: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    result: int = _libc().prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero)
    return result


def _warn(what: str, error: OSError) -> None:
    """Leave a word on stderr: the process goes on without this means, and `fleet doctor` says so as well."""
    print(f"this worker process runs without {what}: {error}", file=sys.stderr)
