"""The folder of device files: parsed as it changes, added to whole, and never read half written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.records import DeviceId
from fleet.config import device_folder
from fleet.config.device_files import load_file
from fleet.config.device_folder import DeviceFolder, FoundDevices, add_file, retire_file
from fleet.config.yaml_files import ConfigError
from tests.fleet.config.test_config import GOOD, write
from tests.scenario_fixtures import play, read_scenarios

A, B = DeviceId("a"), DeviceId("b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hardware"
    made.mkdir()
    write(made, "a.yaml", {**GOOD, "device_id": "a"})
    return made


class Watched:
    """A folder that is looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.watched, self.found = folder, DeviceFolder(folder), FoundDevices(specs={})
        self.watched.read()

    def act(self, line: str) -> None:
        match line.split():
            case ["device", name]:
                write(self.folder, f"{name}.yaml", {**GOOD, "device_id": name})
            case ["half", name]:
                write(self.folder, f"{name}.yaml", "schema: 1\n")
            case ["link", name]:
                (self.folder / f"{name}.yaml").symlink_to(self.folder / "nowhere")
            case ["move", name, to]:
                (self.folder.parent / name).rename(self.folder.parent / to)

    def value(self, path: str) -> Any:
        if path == "look":
            found = self.watched.look()
            self.found = found or self.found
            return found and sorted(found.specs)
        return {str(name): faults for name, faults in self.found.faults.items()}


FOLDERS = read_scenarios(Path(__file__).with_name("folder_scenarios.txt"))


@pytest.mark.parametrize("title", FOLDERS)
def test_a_scenario(title: str, folder: Path) -> None:
    watched = Watched(folder)
    with mock.patch.object(device_folder, "load_file", wraps=load_file) as parsed:
        play(FOLDERS[title], watched.act, watched.value)
    # Neither half a file nor one that did not change.
    assert [call.args[0].name for call in parsed.call_args_list] in ([], ["b.yaml"])


def test_a_file_that_takes_the_place_of_another_is_there_whole_or_not_at_all(
    folder: Path, tmp_path: Path
) -> None:
    source = write(tmp_path, "new-words.yaml", {**GOOD, "device_id": "a", "note": "new"})
    spec = load_file(source, "")
    before = (folder / "a.yaml").read_text()
    with (
        mock.patch("agents.files.fsync", side_effect=OSError(28, "No space left on device")),
        pytest.raises(Exception, match="No space left"),
    ):
        add_file(folder, spec, source, is_replaced=True)
    assert [path.name for path in folder.iterdir()] == ["a.yaml"]
    assert (folder / "a.yaml").read_text() == before
    assert add_file(folder, spec, source, is_replaced=True) == folder / "a.yaml"
    assert DeviceFolder(folder).read().specs[A].note == "new"


def test_a_pipe_that_was_read_already_becomes_no_empty_device_file(folder: Path, tmp_path: Path) -> None:
    source = write(tmp_path, "b.yaml", {**GOOD, "device_id": "b"})
    spec = load_file(source)
    source.unlink()
    os.mkfifo(source)
    with pytest.raises(ConfigError, match=r"b\.yaml: is no regular file"):
        add_file(folder, spec, source)
    assert [path.name for path in folder.iterdir()] == ["a.yaml"]


def test_retired_files_are_read_by_nobody_and_none_replaces_another(folder: Path) -> None:
    write(folder, "b.yaml", {**GOOD, "device_id": "b"})
    text: Any = (folder / "b.yaml").read_text()
    first = retire_file(folder, folder / "b.yaml")
    assert first == folder / "retired" / "b.yaml"
    shutil.copy(first, folder / "b.yaml")
    second = retire_file(folder, folder / "b.yaml")
    assert second != first
    assert first.read_text() == second.read_text() == text
    assert set(DeviceFolder(folder).read().specs) == {"a"}
    assert load_file(second, "").device_id == B
