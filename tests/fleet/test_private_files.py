"""Tokens in files: what others could read or replace is refused with the command that mends it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.private_files import NotPrivateError, check_folder, read_private, write_private


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "keep" / "token"
    path.parent.mkdir(mode=0o755)
    write_private(path, "the secret of the test")
    return path


def test_what_is_written_can_be_read_by_its_owner_only(token: Path) -> None:
    assert read_private(token) == "the secret of the test\n"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["token"]


def test_a_file_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "nothing" / "token", tmp_path / "file" / "token"):
        with pytest.raises(FileNotFoundError):
            read_private(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def test_a_named_pipe_is_refused_without_waiting_for_it(token: Path) -> None:
    token.unlink()
    os.mkfifo(token, 0o600)
    with pytest.raises(NotPrivateError, match="no regular file"):
        read_private(token)


MENDED: dict[str, tuple[Callable[[Path], None], str]] = {
    "others may read": (lambda path: path.chmod(0o604), r"others may read this token \(mode 604\)"),
    "the group may read": (lambda path: path.chmod(0o640), r"others may read this token \(mode 640\)"),
    "others may write beside it": (lambda path: path.parent.chmod(0o757), r"other users may write there"),
    "the group may write beside it": (lambda path: path.parent.chmod(0o775), r"other users may write there"),
    "a link": (link, "is a link"),
}


@pytest.mark.parametrize(("spoil", "words"), MENDED.values(), ids=MENDED)
def test_what_the_error_says_mends_it(
    spoil: Callable[[Path], None], words: str, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.private_files._is_own_group", lambda _: False)
    spoil(token)
    with pytest.raises(NotPrivateError, match=words) as refused:
        read_private(token)
    assert "\n" not in str(refused.value)
    command = refused.value.cure.removeprefix("run: ")
    assert command != refused.value.cure
    subprocess.run(command, shell=True, check=True)
    assert read_private(token) == "the secret of the test\n"


def test_another_users_file_or_folder_is_refused(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = token.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(NotPrivateError, match=f"belongs to user {owner}, expected {owner + 1}"):
        read_private(token)
    if owner:
        with pytest.raises(NotPrivateError, match=f"belongs to user {owner}, expected {owner + 1} or 0"):
            check_folder(token.parent)


def test_the_sticky_bit_and_a_group_of_ones_own_keep_others_out(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token.parent.chmod(0o1777)
    check_folder(token.parent)
    token.parent.chmod(0o775)
    monkeypatch.setattr("fleet.private_files._is_own_group", lambda gid: gid == token.stat().st_gid)
    check_folder(token.parent)
    token.parent.chmod(0o777)
    with pytest.raises(NotPrivateError, match="chmod go-w"):
        check_folder(token.parent)
