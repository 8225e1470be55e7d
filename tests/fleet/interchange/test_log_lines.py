from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.interchange.logs.lines import LONG_LINE, LogLines, Unreadable, first_lines


def lines_of(path: Path, limit: int = 1 << 20, chunk: int = 1 << 20) -> tuple[list[bytes | Unreadable], str]:
    reader = LogLines(path, limit, chunk)
    found = list(reader)
    assert reader.position == path.stat().st_size or reader.damage
    return found, reader.damage


@example([b"\xef\xbb\xbf"], True, False, 1)  # a byte order mark that is unpacked byte by byte
@example([b"\xef\xbb"], False, True, 1)
@given(
    st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), max_size=30),
    st.booleans(),
    st.booleans(),
    st.integers(1, 50),
)
def test_any_lines_come_back_plain_and_packed(
    lines: list[bytes], packed: bool, ended: bool, chunk: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(gzip.compress(data) if packed else data)
        if not packed and data.startswith((b"\x1f\x8b", b"BZh")):
            return  # looks packed
        found, damage = lines_of(path, chunk=chunk)
    expected = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert found == (expected if expected[-1] else expected[:-1])
    assert damage == ""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_a_gigantic_line_is_dropped_and_the_others_stay(tmp_path: Path, packed: bool, chunk: int) -> None:
    data = b"one\n" + b"x" * 5000 + b"\ntwo\n" + b"y" * 101 + b"\n" + b"z" * 100 + b"\n" + b"w" * 999
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(data) if packed else data)
    found, _ = lines_of(path, limit=100, chunk=chunk)
    assert found == [b"one", LONG_LINE, b"two", LONG_LINE, b"z" * 100, LONG_LINE]


ENDED = gzip.compress(b"one\n")
CHECKED = gzip.compress(b"one\ntwo\n")


@pytest.mark.parametrize(
    ("data", "lines", "words"),
    [
        (gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n") + b"\0" * 1000, b"one two three", ""),
        (ENDED + b"rubbish", b"one", "something else follows"),
        (ENDED + CHECKED[:-8] + bytes([CHECKED[-8] ^ 1]) + CHECKED[-7:], b"one", "incorrect data check"),
    ],
    ids=["members, then zeros", "rubbish behind it", "a wrong checksum"],
)
def test_lines_of_gz_come_before_what_is_told(tmp_path: Path, data: bytes, lines: bytes, words: str) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(data)
    found, damage = lines_of(path)
    assert found == lines.split()
    assert words in damage
    assert bool(words) == bool(damage)


def test_damage_in_the_middle_of_gz_costs_only_what_follows(tmp_path: Path) -> None:
    lines = [b'{"line": %d}' % number for number in range(5000)]
    head, tail = (gzip.compress(b"\n".join(some)) for some in ([*lines[:4000], b""], lines[4000:]))
    path = tmp_path / "log.gz"
    path.write_bytes(head + tail[:30] + b"\xff" * 30 + tail[60:])
    found, damage = lines_of(path)
    assert damage.startswith("gz: ")
    assert found[:4000] == lines[:4000]


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(1, 64))
def test_no_bytes_raise(data: bytes, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(b"\x1f\x8b" + data)
        lines_of(path, chunk=chunk)


def test_first_lines_stop_early(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"line\n" * 100_000)
    assert first_lines(path, 3) == ([b"line"] * 3, "")
    assert first_lines(path, 200_000) == ([*[b"line"] * 100_000, b""], "")
    path.write_bytes(b"x" * 10_000_000)
    (line,), damage = first_lines(path, 3)
    assert 1 << 20 <= len(line) < 1 << 21
    assert damage == ""
