"""Files that only their owner may read or replace: tokens. What others could reach is refused, not mended.

`fleet.api` and `fleet.transport.ray_token` keep secrets in such files; `fleet doctor` looks at them.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

from agents.files import write_durably
from fleet.errors import FleetError

#: A token is far shorter.
_MOST_BYTES = 64 << 10
#: No link is followed, and nobody waits for the other end of a named pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPrivateError(FleetError):
    """Others may read or replace a file or folder that must be its owner's alone.

    Attributes:
        path: The file or folder.
        fault: What is wrong with it.
        cure: What to do, with the command where there is one.
    """

    def __init__(self, path: Path, fault: str, cure: str) -> None:
        super().__init__(f"{path}: {fault}; {cure}")
        self.path, self.fault, self.cure = path, fault, cure


def read_private(path: Path) -> str:
    """Text of a file that is a regular file of this user, mode 0600 or less, in a folder that is safe.

    What is checked is what is read: the file is opened first.

    Raises:
        NotPrivateError: It is not like that, or cannot be read.
        FileNotFoundError: There is no such file.
    """
    try:
        handle = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"there is no file {path}") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            cure = f"run: cp --remove-destination $(readlink -f {path}) {path} && chmod 600 {path}"
            raise NotPrivateError(path, "is a link, expected the file itself", cure) from error
        why = os.strerror(error.errno or 0)
        raise NotPrivateError(
            path, f"cannot be read ({why})", "run this as the user that it belongs to"
        ) from error
    with os.fdopen(handle, "rb") as file:
        _check_file(path, os.fstat(handle))
        check_folder(path.parent)
        try:
            return file.read(_MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise NotPrivateError(path, "holds no text", "delete it and make a new one") from error


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read; it appears whole.

    Raises:
        OSError: There is no room, or no permission.
    """
    write_durably(path, f"{text}\n".encode(), mode=0o600)


def check_folder(path: Path) -> None:
    """Refuse a folder in which another user could replace a file of ours.

    The sticky bit, as `/tmp` has it, keeps others from that. So does a group with this user alone in it.

    Raises:
        NotPrivateError: Another user's, or others may write there.
        OSError: It cannot be looked at.
    """
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        whose = f"belongs to user {status.st_uid}, expected {os.geteuid()} or 0"
        raise NotPrivateError(path, whose, "use a folder of your own")
    by_group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    if (status.st_mode & stat.S_IWOTH or by_group) and not status.st_mode & stat.S_ISVTX:
        fault = f"other users may write there (mode {stat.S_IMODE(status.st_mode):o})"
        raise NotPrivateError(path, fault, f"run: chmod go-w {path}")


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivateError(path, "is no regular file", "delete it and make a new one")
    if status.st_uid != os.geteuid():
        whose = f"belongs to user {status.st_uid}, expected {os.geteuid()}"
        raise NotPrivateError(path, whose, "run this as that user, or give it away with chown")
    if status.st_mode & 0o077:
        fault = f"others may read this token (mode {stat.S_IMODE(status.st_mode):o})"
        raise NotPrivateError(path, fault, f"run: chmod 600 {path}")


def _is_own_group(gid: int) -> bool:
    """Whether a group is that of this user alone, as most systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
