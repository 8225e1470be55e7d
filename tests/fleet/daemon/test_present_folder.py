"""`fleet up` from a folder of others, by a user without a umask: nothing of it runs, nobody may write."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import fleet
from fleet.store.store import Store
from tests.coordinator_fixtures import ALL, recorded_file, write_replay_device

#: Names that processes of ours and of Ray import early or late, and those of our own packages.
HOSTILE = ("agents", "fleet", "transfer", "json", "numpy", "psutil", "ray", "sitecustomize", "usercustomize")
#: What an installer writes for the command.
SCRIPT = "import sys\nfrom fleet.cli.app import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def write_hostile_modules(folder: Path, marker: Path) -> None:
    folder.mkdir()
    code = f"open({str(marker)!r}, 'a').write(__name__ + chr(10))\n"
    for name in HOSTILE:
        if name in ("agents", "numpy"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(code)
        else:
            (folder / f"{name}.py").write_text(code)


def world_writable(folder: Path) -> list[str]:
    """Files and folders below one that other users may write."""
    every = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in every if path.stat().st_mode & stat.S_IWOTH]


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_a_daemon_imports_nothing_of_the_present_folder_and_lets_nobody_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, present, script = tmp_path / "marker", tmp_path / "present", tmp_path / "bin" / "fleet"
    write_hostile_modules(present, marker)
    recorded = recorded_file(tmp_path)
    for folder in (tmp_path / "hardware", script.parent):
        folder.mkdir()
    write_replay_device(tmp_path / "hardware", "again", recorded)
    script.write_text(SCRIPT)
    runs = tmp_path / "runs"
    settings = {
        "schema": 1,
        "devices": {"folder": str(tmp_path / "hardware"), "ids": ["again"]},
        "store": {"path": str(runs / "store")},
        "workloads": {"noise_samples": 0},
        "daemon": {"root": str(runs / "fleet"), "api_port": 0, "refresh": False},
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(settings))
    # A checkout is found without being installed.
    monkeypatch.setenv("PYTHONPATH", str(Path(fleet.__file__).parents[1]))
    up = subprocess.run(
        [sys.executable, str(script), "up", "--once", "--config", str(tmp_path / "fleet.yaml")],
        cwd=present,
        umask=0,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not marker.exists(), f"modules of the present folder ran: {marker.read_text()}"
    assert up.returncode == 0, up.stderr
    assert len(list(Store.read(runs / "store").records())) == ALL
    assert world_writable(runs) == []
