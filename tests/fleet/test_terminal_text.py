"""What came from outside is shown on a terminal, and commands nothing there."""

from __future__ import annotations

import ast
import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from fleet.planner.progress import TerminalDisplay
from fleet.terminal_text import TerminalConsole, make_logs_visible, print_rows, visible
from tests.log_fixtures import CUDA_TARGET, autotvm, write_log

ROOT = Path(__file__).parents[2]
#: Sets the title of the window, clears the screen, and feigns a line.
NAME = b"a\x1b]0;owned\x07\x1b[2J\x9b2J\xe2\x80\xae[red]\nfleet: all is well.json"


def test_what_cannot_be_printed_is_written_out() -> None:
    assert visible("plain ä 試 ✓") == "plain ä 試 ✓"
    assert visible("a\x1b[2J\x07\x7f\x9b\u202e\u2066\u200b\u2028\tb\n") == (
        "a\\x1b[2J\\x07\\x7f\\x9b\\u202e\\u2066\\u200b\\u2028\\tb\\n"
    )
    assert visible(os.fsdecode(b"\xff\x80")) == "\\xff\\x80"
    assert visible("\ud800") == "\\ud800"
    assert visible("a\n\x1b", kept="\n") == "a\n\\x1b"


@given(st.text())
def test_everything_visible_can_be_printed(text: str) -> None:
    assert visible(text).isprintable()
    visible(text).encode()


def test_a_console_shows_what_rich_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.print("\x1b[2J [/red] [bold]", Text("\x1b]0;x\x07"))
    print_rows(("one", "two"), [("\x1b[2J", "[/red]\nfleet: all is well")])
    console.print("net:on:1")
    print_rows(("one", "two"), [("conv:a:1", ":100:")])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("net:on:1", "conv:a:1", ":100:")), "names stand for no pictures"
    assert "\x1b" not in shown
    assert "\\x1b[2J [/red] [bold] \\x1b]0;x" in shown
    assert "[/red]\\nfleet: all is well" in shown


def test_progress_shows_names_as_they_are() -> None:
    console = TerminalConsole()
    console.file = out = io.StringIO()
    console._force_terminal = True
    display = TerminalDisplay(console)
    with display.live():
        display.phase("Reading", 10)
        display.step(1, "\x1b[2J [/red]")
        display.say("[/red] \x1b]0;x")
        display.finish()
    assert "[/red] \\x1b]0;x" in out.getvalue()
    assert "\\x1b[2J [/" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


def test_warnings_of_modules_are_visible() -> None:
    handler = logging.lastResort
    before = handler.formatter
    try:
        make_logs_visible()
        record = logging.LogRecord("x", logging.WARNING, "x", 1, "a %s\nb", ("\x1b[2J",), None)
        assert handler.format(record) == "a \\x1b[2J\nb"
    finally:
        handler.setFormatter(before)


def fleet(*arguments: str | bytes, cwd: Path) -> str:
    """What `fleet` prints on a terminal, standard error included."""
    command = [sys.executable, "-m", "fleet.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "400"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        process.wait()
    os.close(ours)
    return b"".join(parts).decode()


def test_names_of_imported_files_command_no_terminal(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_log(logs / "a.json", [autotvm(1), "junk \x1b[2J", b'{"i": "\x1b[2J"}'])
    (logs / "a.json").rename(logs / os.fsdecode(NAME))
    (logs / os.fsdecode(b"other" + NAME)).write_text("no log")
    (logs / os.fsdecode(NAME.replace(b".json", b".gz"))).write_bytes(b"\x1f\x8b[ damaged")
    told = fleet("import", "logs", "--device", "d", cwd=tmp_path)
    assert "imported" in told
    assert (
        f"first not JSON: {tmp_path}/logs/a\\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\u202e[red]\\nfleet: all" in told
    )
    assert "not logs: othera\\x1b]0;" in told
    assert f"damaged: {tmp_path}/logs/a\\x1b]0;" in told
    # And the lines of errors.
    write_log(tmp_path / "gpu.json", [autotvm(1, target=CUDA_TARGET)])
    (tmp_path / "gpu.json").rename(tmp_path / os.fsdecode(NAME))
    for name in (NAME, b"nowhere" + NAME):
        told += fleet("import", name, "--device", "d", cwd=tmp_path)
    assert "was measured on a gpu (cuda), but device d is a cpu" in told
    assert "no such file or folder" in told
    for command in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\nfleet: all is well"):
        assert command not in told


PRINTS = {"fleet/terminal_text.py", "fleet/cli/output.py", "fleet/cli/app.py"}


def test_nothing_else_prints() -> None:
    for path in (ROOT / "fleet").rglob("*.py"):
        where = str(path.relative_to(ROOT))
        if where in PRINTS:
            continue
        called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        functions = {one.id for one in called if isinstance(one, ast.Name)}
        names = functions | {one.attr for one in called if isinstance(one, ast.Attribute)}
        # What a process prints for the process that started it is no terminal's.
        allowed = {"print"} if path.name in ("process.py", "driver_process.py") else set()
        assert not (names - allowed) & {"echo", "secho", "Console"}, where
        assert "print" not in functions - allowed, where
