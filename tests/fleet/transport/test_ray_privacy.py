"""Who may reach a Ray of our own, and which token of a cluster is believed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agents.host.process_control import environment
from fleet.errors import FleetError
from fleet.transport.ray_folder import PREFIX, RayFolder
from fleet.transport.ray_session import join_ray
from fleet.transport.ray_token import give_cluster_token, give_own_token, token_path
from tests.conftest import running

ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder without a token; returns where the token would be."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # Set before it is deleted, so that what the code sets is undone.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def write(path: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_our_own_ray_gets_a_new_token_that_no_file_holds_or_has_held(
    no_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_own_token()
    made = os.environ["RAY_AUTH_TOKEN"]
    assert len(made) == 64
    assert not no_token.exists()
    give_own_token()
    assert os.environ["RAY_AUTH_TOKEN"] == made
    assert "RAY_AUTH_TOKEN" not in environment(), "no program that is measured gets it"
    # Nor is a file believed that others may have read.
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    write(no_token, mode=0o644)
    give_own_token()
    assert os.environ["RAY_AUTH_TOKEN"] != TOKEN


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_private_file_gives_the_token_of_a_cluster(
    no_token: Path, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    if is_elsewhere:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~/.ray/other")
        write(no_token, "not this one, it is another")
    path = write(no_token.with_name("other") if is_elsewhere else no_token, TOKEN + "\n")
    assert token_path() == path
    give_cluster_token("head:6379")
    assert os.environ["RAY_AUTH_TOKEN"] == TOKEN


def test_the_environment_goes_first_and_an_empty_one_is_none(
    no_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(no_token, mode=0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 32)
    give_cluster_token("head:6379")
    assert os.environ["RAY_AUTH_TOKEN"] == "x" * 32
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
    with pytest.raises(FleetError, match="chmod 600"):
        give_cluster_token("head:6379")


#: Modes of the folder and of the file, what the file holds, and words of the refusal.
UNSAFE = [
    (0o700, 0o644, TOKEN, r"is not safe: .*auth_token: others may read .* \(mode 644\); run: chmod 600 /"),
    (0o700, 0o600, "short\n", "expected a token of 16 characters at least, got 5"),
    (0o700, 0o600, "", "expected a token of 16 characters at least, got 0"),
    (0o777, 0o600, TOKEN, "chmod go-w"),
]


@pytest.mark.parametrize(("above", "mode", "text", "words"), UNSAFE)
def test_a_cluster_is_not_joined_with_a_token_that_is_not_safe(
    no_token: Path, above: int, mode: int, text: str, words: str
) -> None:
    with pytest.raises(FleetError, match=r"no token for the Ray cluster at 127\.0\.0\.1:1"):
        join_ray("127.0.0.1:1")
    write(no_token, text, mode).parent.chmod(above)
    with pytest.raises(FleetError, match=words) as refused:
        join_ray("127.0.0.1:1")
    assert "\n" not in str(refused.value)
    assert TOKEN not in str(refused.value)


# ---- the folder ----


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder whose path is as short as Ray needs it."""
    made = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def test_the_folder_is_for_us_alone_and_goes_with_its_ray(base: Path) -> None:
    before = os.umask(0)
    try:
        folder = RayFolder(base)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.inner.parent == folder.path
    (folder.inner / "logs").mkdir(parents=True)
    folder.close()
    folder.close()
    assert list(base.iterdir()) == []
    base.chmod(0o777)
    with pytest.raises(FleetError, match="chmod go-w"):
        RayFolder(base)


def test_folders_of_ended_processes_go_and_all_others_stay(base: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fleet.transport.ray_folder import RayFolder\n"
        "folder = RayFolder(Path(sys.argv[1])); folder.inner.mkdir(); print(folder.path, flush=True)\n"
        "sys.stdin.readline()"
    )
    with running(code, base, cwd=ROOT) as dead, running(code, base, cwd=ROOT) as alive:
        left, held = (Path(one.first_line.strip()) for one in (dead, alive))
        dead.kill()
        dead.wait()
        other = base / "ray"
        other.mkdir()
        link = base / f"{PREFIX}link"
        link.symlink_to(other)
        mine = RayFolder(base)
        assert not left.exists()
        assert held.is_dir()
        assert other.is_dir()
        assert link.is_symlink()
        RayFolder(base).close()
        assert mine.path.is_dir()
        mine.close()


def test_a_place_with_too_long_a_path_for_sockets_is_not_taken(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(base))
    near = RayFolder()
    assert near.path.parent == base
    near.close()
    monkeypatch.setenv("RAY_TMPDIR", str(base / ("x" * 60)))
    far = RayFolder()
    far.close()
    assert far.path.parent == Path("/tmp")


# ---- with Ray ----

#: Starts a Ray of our own as `fleet up` does; tells what it sees, and waits.
SESSION = """
import json, os, time
from fleet.transport.ray_session import start_ray
os.umask(0)
folder = start_ray(2)
import ray
told = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_TOKEN"]).remote())
print(json.dumps([str(folder.path), told == os.environ["RAY_AUTH_TOKEN"], len(told)]), flush=True)
time.sleep(600)
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_nobody_else_can_reach_a_ray_of_our_own_and_a_killed_one_goes_with_the_next_start(base: Path) -> None:
    home = base / "home"
    home.mkdir()
    # Made by Ray, as it makes it: not to be used.
    leaked = write(base / "leaked", "f" * 64, 0o644)
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    given |= {"HOME": str(home), "RAY_TMPDIR": str(base), "RAY_AUTH_TOKEN_PATH": str(leaked)}
    with running(SESSION, cwd=ROOT, env=given) as first:
        path, is_shared, token_chars = json.loads(first.first_line)
        folder, everything = Path(path), psutil.Process(first.pid).children(recursive=True)
        try:
            assert (is_shared, token_chars) == (True, 64)
            scripts = {Path(word).name for process in everything for word in process.cmdline()}
            assert "raylet" in scripts
            assert not scripts & {"dashboard.py", "monitor.py", "log_monitor.py"}
            # Made by Ray with mode 0777, sockets included: only what is above them keeps others out.
            [session] = [one for one in (folder / "r").glob("session_2*") if not one.is_symlink()]
            assert (session / "sockets" / "raylet").is_socket()
            assert folder.parent == base
            assert not (base / "ray").exists()
            assert not (home / ".ray").exists()
            if os.geteuid() == 0:
                base.chmod(0o755)
                refused = subprocess.run(
                    ["ls", str(session)], capture_output=True, text=True, check=False, user=65534, group=65534
                )
                assert refused.returncode
                assert "Permission denied" in refused.stderr
            first.kill()
            first.stdout.close()  # Ray's helpers hold it for a minute
            first.wait(60)
            RayFolder(base).close()
            assert list(base.glob(f"{PREFIX}*")) == []
        finally:
            for one in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


# ---- what the docs tell people to run ----

DOCS = ROOT / "docs" / "cluster.md"


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_the_documented_command_makes_a_private_token(no_token: Path) -> None:
    [command] = [
        line for line in DOCS.read_text().splitlines() if line.startswith("(umask 077; ray get-auth")
    ]
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", f"umask 022; {command}"], check=True, env={**os.environ, "PATH": search}, timeout=100
    )
    give_cluster_token("head:6379")
    assert os.environ["RAY_AUTH_TOKEN"] == no_token.read_text().strip()


def test_documented_services_and_clusters_keep_others_out() -> None:
    text = DOCS.read_text()
    services = text.split("[Service]\n")[1:]
    assert len(services) == 3
    assert all("UMask=0077\n" in one.split("[Install]")[0] for one in services)
    joined = text.replace("\\\n", " ")
    starts = [
        line
        for line in joined.splitlines()
        if re.search(r"ray[ _]start", line) and ("--head" in line or "--address" in line)
    ]
    commands = [line for line in starts if not line.startswith("|")]
    assert len(commands) >= 4
    for line in commands:
        assert "--temp-dir=" in line, line
