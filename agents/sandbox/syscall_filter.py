"""The system calls that a worker process may not make, as a program for the kernel's filter (seccomp).

Called by `confinement.py`; pure. Landlock keeps a process from writing files; most of what is refused here
are ways around it (another process's memory, attributes of files, new mounts) and ways to harm processes of
the same user. What is not named is allowed, up to the newest call that was looked at: later ones do not exist
for the process. A call that other programs need but whose effect is not wanted only seems to succeed.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

#: Architectures: their number in the kernel's audit (`AUDIT_ARCH_*`), their column below.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
#: Numbers of system calls: x86-64, AArch64 (None: it has no such call). From 424 on they are the same.
_Numbers = dict[str, tuple[int | None, int | None]]
_NEWEST = 450

#: Other processes, mounts and namespaces, the kernel itself, clocks, what gets past a filter (io_uring).
_REFUSED: _Numbers = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    # A process group or a session of its own would outlive the worker process.
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # By handle instead of by name, by name without opening, and what Landlock does not look at.
    "open_by_handle_at": (304, 265),
    "truncate": (76, 45),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    # Memory and queues that belong to no file and are shared with every process of the user.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Memory that no process has mapped, which nobody counts, and limits that the agent has set.
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "setrlimit": (160, 164),
}
#: Modes and owners of files, inside the scratch folder too: linkers and copies fail where they are refused.
_WITHOUT_EFFECT: _Numbers = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
}
#: Allowed for the process itself and its group: the first argument is its id or 0.
_OF_ITSELF: _Numbers = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
#: Real-time priority is given from outside while a program is timed (`core_slot.py`); GPU drivers may ask.
_PRIORITY: _Numbers = {
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
#: What the confinement of a process and its trial call by number (`call_number`).
_OWN: _Numbers = {
    "seccomp": (317, 277),
    "capget": (125, 90),
    "capset": (126, 91),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}
#: F_SETOWN, F_SETSIG and F_SETOWN_EX have the kernel send signals; F_SETLEASE makes others wait.
_FCNTL_COMMANDS = (8, 10, 15, 1024)
#: TIOCSTI and TIOCLINUX type into a terminal; FIOSETOWN and SIOCSPGRP have the kernel send signals.
_IOCTL_COMMANDS = (0x5412, 0x541C, 0x8901, 0x8902)
#: Whole families of commands: Btrfs (snapshots), XFS and generic flags of files.
_IOCTL_FAMILIES = (0x9400, 0x5800, 0x6600)
#: PR_SET_PDEATHSIG: a worker process is to end with its zygote.
_PRCTL_COMMANDS = (1,)

#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = 0x7E020000
_CLONE_THREAD = 0x00010000
#: Of the type of a socket, without SOCK_CLOEXEC and SOCK_NONBLOCK.
_SOCKET_TYPE = 0xF

# The filter's instructions (BPF), its answers, and where it finds the call.
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")

_Instruction = tuple[int, int, int, int]
_DENY: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_MISSING: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
_IGNORE: _Instruction = (_RETURN, 0, 0, _ERRNO)
_PASS: _Instruction = (_RETURN, 0, 0, _ALLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a worker process must be able to do beside building and running programs in itself."""

    #: Start other programs: compilers, `tar`.
    programs: bool = False
    #: Connect to RPC trackers and servers over IP.
    network: bool = False
    #: Use GPUs; their drivers make a local socket that nobody connects to.
    gpu: bool = False
    #: Map files that others may map too, as readers of weights do and linkers.
    shared_files: bool = False


def is_known(machine: str) -> bool:
    """Whether there is a filter for an architecture (`os.uname().machine`)."""
    return machine in _ARCHITECTURES


def call_number(name: str) -> int:
    """Number of a system call of `_OWN` or `_REFUSED` on this host; newer architectures number as AArch64."""
    _, column = _ARCHITECTURES.get(os.uname().machine, (0, 1))
    number = (_OWN | _REFUSED)[name][column]
    assert number is not None
    return number


def filter_program(machine: str, pid: int, needs: Needs) -> bytes:
    """Make the filter of one process: instructions of 8 bytes each (`struct sock_filter`).

    The architecture (`machine`) is one that `is_known`.
    """
    architecture, column = _ARCHITECTURES[machine]

    instructions: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        # A call made the way of another architecture, such as 32-bit x86, has other numbers.
        (_EQUAL, 1, 0, architecture),
        _MISSING,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_GREATER, 0, 1, _NEWEST),
        _MISSING,
    ]
    for calls, body in _rules(pid, needs):
        numbers = [call[column] for call in calls.values()]
        instructions += _each([number for number in numbers if number is not None], body)
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in [*instructions, _PASS])


def _rules(pid: int, needs: Needs) -> list[tuple[_Numbers, list[_Instruction]]]:
    """System calls, and the instructions that answer them; the first rule for a call counts."""
    refused = dict(_REFUSED)
    if not needs.programs:
        refused |= {"execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None)}
    if not needs.network:
        refused |= {"connect": (42, 203)}
    if not needs.gpu:
        # Memory without a name is for the drivers of GPUs only.
        refused |= {"bind": (49, 200), "listen": (50, 201), "memfd_create": (319, 279)} | _PRIORITY
    if not (needs.programs or needs.network or needs.gpu):
        refused |= {"socketpair": (53, 199)}  # the buffers of many sockets are memory as well
    of_itself = _only((0, pid))
    families = [(_AND, 0, 0, 0xFF00), *_none_of(_IOCTL_FAMILIES), _PASS]
    rules: list[tuple[_Numbers, list[_Instruction]]] = [
        (refused, [_DENY]),
        # Callers fall back on older calls whose arguments a filter can see.
        ({"clone3": (435, 435), "openat2": (437, 437)}, [_MISSING]),
        (_WITHOUT_EFFECT, [_IGNORE]),
        (_OF_ITSELF | _PRIORITY, [_argument(0), *of_itself]),
        # Of itself too, and without new limits.
        ({"prlimit64": (302, 261)}, [*_null(2), _argument(0), *of_itself]),
        # These name the process in the second argument; the first must have the value for "a process".
        ({"setpriority": (141, 140)}, [_argument(0), (_EQUAL, 1, 0, 0), _DENY, _argument(1), *of_itself]),
        ({"ioprio_set": (251, 30)}, [_argument(0), (_EQUAL, 1, 0, 1), _DENY, _argument(1), *of_itself]),
        ({"open": (2, None)}, _opening(flags_at=1)),
        ({"openat": (257, 56)}, _opening(flags_at=2)),
        ({"clone": (56, 220)}, _cloning(needs.programs)),
        ({"socket": (41, 198)}, _sockets(needs)),
        ({"fcntl": (72, 25)}, [_argument(1), *_none_of(_FCNTL_COMMANDS), _PASS]),
        ({"ioctl": (16, 29)}, [_argument(1), *_none_of(_IOCTL_COMMANDS), *families]),
        ({"prctl": (157, 167)}, [_argument(0), *_none_of(_PRCTL_COMMANDS), _PASS]),
    ]
    if not needs.gpu:
        rules.append(({"mmap": (9, 222)}, _mapping(needs.shared_files)))
    return rules


def _each(numbers: list[int], body: list[_Instruction]) -> list[_Instruction]:
    """Give these calls to `body`, which ends with an answer; all others go on behind it."""
    if not numbers:
        return []
    last = len(numbers) - 1
    tests = [
        (_EQUAL, last - place, len(body) if place == last else 0, number)
        for place, number in enumerate(numbers)
    ]
    return [*tests, *body]


def _argument(place: int) -> _Instruction:
    """Load the lower half of an argument: those looked at here are `int` or flags, little-endian."""
    return _LOAD, 0, 0, _ARGUMENTS_AT + 8 * place


def _null(place: int) -> list[_Instruction]:
    """Go on where an argument is no address, refuse else."""
    low = _ARGUMENTS_AT + 8 * place
    halves = ((_LOAD, 0, 0, low), (_LOAD, 0, 0, low + 4))
    return [step for half in halves for step in (half, (_EQUAL, 1, 0, 0), _DENY)]


def _mapping(may_share_files: bool) -> list[_Instruction]:
    """Refuse memory that outlives its mapping: shared memory of no file, or of /dev/zero, which is a file."""
    refused = mmap.MAP_SHARED | (mmap.MAP_ANONYMOUS if may_share_files else 0)
    return [_argument(3), (_AND, 0, 0, refused), (_EQUAL, 0, 1, refused), _DENY, _PASS]


def _only(values: Iterable[int]) -> list[_Instruction]:
    """Allow where the loaded value is one of these, refuse else."""
    return [*(step for value in values for step in ((_EQUAL, 0, 1, value), _PASS)), _DENY]


def _none_of(values: Iterable[int]) -> list[_Instruction]:
    """Refuse where the loaded value is one of these, go on else."""
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _DENY)]


def _opening(flags_at: int) -> list[_Instruction]:
    """Refuse to empty a file that is opened for reading: before Linux 6.2 Landlock does not see that."""
    writing = ((_EQUAL, 0, 1, os.O_TRUNC | mode) for mode in (os.O_WRONLY, os.O_RDWR))
    return [
        _argument(flags_at),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        *(step for test in writing for step in (test, _PASS)),
        (_ANY_BIT, 0, 1, os.O_TRUNC),
        _DENY,
        _PASS,
    ]


def _cloning(may_fork: bool) -> list[_Instruction]:
    body = [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _DENY]
    return [*body, _PASS] if may_fork else [*body, (_ANY_BIT, 1, 0, _CLONE_THREAD), _DENY, _PASS]


def _sockets(needs: Needs) -> list[_Instruction]:
    families: tuple[int, ...] = ()
    kinds: tuple[int, ...] = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    if needs.gpu:
        families = (socket.AF_UNIX,)
    if needs.network:  # datagrams: how names are resolved
        families, kinds = (socket.AF_INET, socket.AF_INET6), (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    if not families:
        return [_DENY]
    kind = [_argument(1), (_AND, 0, 0, _SOCKET_TYPE), *_only(kinds)]
    # From each family that fits, over the tests of the others and the refusal, to the kind of socket.
    last = len(families) - 1
    tests = [(_EQUAL, last - place + 1, 0, int(family)) for place, family in enumerate(families)]
    return [_argument(0), *tests, _DENY, *kind]
