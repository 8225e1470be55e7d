"""What a program may leave in its scratch folder, and what becomes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agents.host.process_control import environment
from agents.sandbox.scratch import remove_tree, require_executable
from tests.confinement_fixtures import nest
from tests.conftest import run_code, running

#: Deeper than Python counts, with paths longer than the kernel takes.
_DEPTH = 1_100


def test_folders_that_are_nested_deeper_than_python_counts_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    nest(folder, _DEPTH, kept)
    remove_tree(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "kept"
    remove_tree(folder)  # it may have gone by itself


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    with pytest.raises(OSError, match="link"):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "kept").exists()


#: As a user whom modes bind; prints what is left.
_AS_USER = """
import os, sys
from pathlib import Path
from agents.sandbox.scratch import remove_tree
top = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
for name in ("a/b/c", "d/e"):
    (top / "folder" / name).mkdir(parents=True)
    (top / "folder" / name / "file").touch()
for name in ("a/b/c", "a/b", "a", "d/e", "d", "."):
    (top / "folder" / name).chmod(0)
remove_tree(top / "folder")
print(os.listdir(top))
"""


def test_folders_without_modes_are_removed() -> None:
    with tempfile.TemporaryDirectory() as folder:  # another user cannot enter the folders of pytest
        Path(folder).chmod(0o777)
        assert run_code(_AS_USER, folder) == "[]\n"


#: Its folders are removed only once a line has been read: what is said before does not wait for it.
_SLOW_REMOVAL = """
import sys
from agents.sandbox import scratch
remove = scratch.remove_tree
def slowly(folder):
    sys.stdin.readline()
    remove(folder)
folders = scratch.ScratchFolders()
made = folders.make(7)
(made / "file").touch()
folders.make(8)
scratch.remove_tree = slowly
folders.remove(7)
folders.remove(8)
assert [path.name for path in made.parent.iterdir()] == ["7"]
print(flush=True)
scratch.remove_tree = remove
folders.close()
print(made.parent.exists())
"""


def test_a_zygote_does_not_wait_for_a_folder_that_takes_long_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running(_SLOW_REMOVAL, env=environment()) as process:
        printed, _ = process.communicate("\n", timeout=60)
    assert printed == "False\n"
    assert not list(tmp_path.iterdir())


_REQUIRE = """
import sys
from pathlib import Path
from agents.errors import AgentError
from agents.sandbox.scratch import require_executable
try:
    require_executable(Path(sys.argv[1]))
except AgentError as error:
    print(error)
"""


def test_a_folder_whose_file_system_runs_nothing_is_found_before_a_library_is_loaded(tmp_path: Path) -> None:
    require_executable(tmp_path)
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root mounts a file system")
    script = 'mount -t tmpfs -o noexec tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, _REQUIRE],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    if done.returncode:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    assert done.stdout.startswith(f"the folder for temporary files {tmp_path} is mounted noexec")
    assert "set TMPDIR to" in done.stdout
