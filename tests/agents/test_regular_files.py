"""Files of others: what is no regular file of the expected size is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.files import check_regular, read_regular


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.symlink_to("/dev/null"), "is no regular file"),
        (Path.mkdir, "is a folder, expected a file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"x" * 9), "has 9 bytes, at most 8 are read"),
        (lambda path: path, "No such file"),
    ],
)
def test_what_is_no_regular_file_is_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    for look in (read_regular, check_regular):
        with pytest.raises(OSError, match=message):
            look(path, 8)


def test_a_file_is_read_to_the_size_that_it_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (3 << 20))
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4 << 20) == b"x" * (3 << 20)
    assert check_regular(tmp_path / "link", 4 << 20) == 3 << 20
    # Its end never comes, and it says that it is empty.
    (tmp_path / "pages").symlink_to("/proc/self/pagemap")
    assert read_regular(tmp_path / "pages", 8) == b""
