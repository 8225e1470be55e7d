"""Standard streams that are closed, full, or whose reader is gone: for the whole command, in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.store.store import Store
from tests.log_fixtures import ansor, write_log

pytestmark = pytest.mark.usefixtures("elsewhere")
IMPORT = ("import", "log.json", "--device", "board-7", "--store", "new")


def fleet(*arguments: str, streams: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line with some redirections of the shell."""
    script = f'exec "$@" {streams}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-P", "-m", "fleet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one(streams: str) -> None:
    write_log(Path("log.json"), [ansor(0)])
    code, shown, said = fleet(*IMPORT, streams=streams)
    assert code == 0
    assert ("new records" in shown) == (">&-" not in streams.replace("2>&-", ""))
    assert ("which is not there yet" in said) == ("2>&-" not in streams)
    # Nothing that was printed went into a file of the store.
    assert Store.read("new").rows == 1
    texts = [path.read_bytes() for path in Path("new").rglob("*") if path.is_file()]
    assert not any(b"new records" in text or b"settings:" in text for text in texts)


@pytest.mark.parametrize("arguments", [("config", "show"), IMPORT])
def test_a_full_disk_behind_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    write_log(Path("log.json"), [ansor(0)])
    code, _, said = fleet(*arguments, streams=">/dev/full")
    lines = [line for line in said.splitlines() if not line.startswith("settings:")]
    assert (code, lines) == (
        1,
        ["fleet: standard output cannot be written (No space left on device): what was done before is kept"],
    )


def test_a_reader_that_is_gone_is_one_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fleet.cli", "config", "schema", "fleet"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    os.close(writer)
    reason = "fleet: standard output cannot be written (Broken pipe): what was done before is kept\n"
    assert (done.returncode, done.stderr) == (1, reason)


def test_a_standard_error_that_cannot_be_written_changes_no_exit_code() -> None:
    assert fleet("config", "show", streams="2>/dev/full")[0] == 0
