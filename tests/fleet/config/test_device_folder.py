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

A, B = DeviceId("a"), DeviceId("b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hardware"
    made.mkdir()
    write(made, "a.yaml", {**GOOD, "device_id": "a"})
    return made


def settled(folder: DeviceFolder) -> FoundDevices:
    """What two looks find: the first one only sees that something moves."""
    assert folder.look() is None
    return found_by(folder)


def found_by(folder: DeviceFolder) -> FoundDevices:
    found = folder.look()
    assert found is not None
    return found


def test_a_change_counts_when_it_is_seen_twice_and_only_then_is_parsed(folder: Path) -> None:
    watched = DeviceFolder(folder)
    assert set(watched.read().specs) == {"a"}
    with mock.patch.object(device_folder, "load_file", wraps=load_file) as parsed:
        assert watched.look() is None
        assert watched.look() is None
        assert not parsed.called
        write(folder, "b.yaml", "schema: 1\n")
        assert watched.look() is None, "it may be half written"
        write(folder, "b.yaml", {**GOOD, "device_id": "b"})
        assert set(settled(watched).specs) == {"a", "b"}
        assert [call.args for call in parsed.call_args_list] == [(folder / "b.yaml",)]
    (folder / "a.yaml").unlink()
    assert set(settled(watched).specs) == {"b"}
    assert watched.look() is None


def test_a_file_that_is_away_for_a_moment_never_left(folder: Path) -> None:
    watched = DeviceFolder(folder)
    watched.read()
    (folder / "a.yaml").rename(folder / "a.yaml~")
    assert watched.look() is None
    (folder / "a.yaml~").rename(folder / "a.yaml")
    assert watched.look() is None
    assert watched.look() is None


def test_a_folder_that_goes_away_changes_no_device(folder: Path, tmp_path: Path) -> None:
    watched = DeviceFolder(folder)
    before = watched.read()
    folder.rename(tmp_path / "elsewhere")
    found = found_by(watched)
    assert found.specs == before.specs
    assert "no such folder" in found.faults[DeviceId("")][0]
    assert watched.look() is None, "said once"
    (tmp_path / "elsewhere").rename(folder)
    assert not found_by(watched).faults


def test_a_link_that_leads_nowhere_is_the_fault_of_one_device(folder: Path) -> None:
    (folder / "b.yaml").symlink_to(folder / "nowhere")
    found = DeviceFolder(folder).read()
    assert set(found.specs) == {"a"}
    assert set(found.faults) == {"b"}


def test_adding_is_refused_for_an_id_that_is_there_and_leaves_nothing_half_done(
    folder: Path, tmp_path: Path
) -> None:
    source = write(tmp_path, "new-words.yaml", {**GOOD, "device_id": "a", "note": "new"})
    spec = load_file(source, "")
    before = (folder / "a.yaml").read_text()
    with pytest.raises(ConfigError, match=r"a\.yaml: device 'a' is there already: --replace"):
        add_file(folder, spec, source)
    assert (folder / "a.yaml").read_text() == before
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
