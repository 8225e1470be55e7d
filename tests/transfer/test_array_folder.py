"""Folders of arrays: opened without being read, whole or not at all, refused with the cure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transfer.array_folder import read_folder, write_folder
from transfer.errors import TransferError

ARRAYS = {"a": np.arange(20).reshape(4, 5), "none": np.zeros((0, 3), dtype=np.float32)}


def test_arrays_open_without_being_read_and_what_else_is_remembered_comes_back(tmp_path: Path) -> None:
    write_folder(tmp_path / "deep" / "one", "kind", 1, ARRAYS, {"names": ["x"]})
    arrays, extra = read_folder(tmp_path / "deep" / "one", "kind", 1)
    assert extra == {"names": ["x"]}
    assert isinstance(arrays["a"], np.memmap)
    assert not arrays["a"].flags.writeable
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["one"]
    with pytest.raises(TransferError, match="exists already"):
        write_folder(tmp_path / "deep" / "one", "kind", 1, ARRAYS)


def test_a_damaged_folder_is_refused_with_the_cure(tmp_path: Path) -> None:
    def refused(what: str) -> None:
        with pytest.raises(TransferError, match=what) as caught:
            read_folder(tmp_path / "one", "kind", 1)
        assert "make it again" in str(caught.value)

    refused("No such file")
    write_folder(tmp_path / "one", "kind", 1, ARRAYS)
    np.save(tmp_path / "one" / "a.npy", np.zeros((2, 2)))
    refused("the manifest says")
    np.save(tmp_path / "one" / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused("pickle|object")
    for damaged in (b"\x93NUMPY", b""):
        (tmp_path / "one" / "a.npy").write_bytes(damaged)
        refused("cannot open")
    (tmp_path / "one" / "manifest.json").write_text("[]")
    refused("TypeError")


def test_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", "features", 99, {})
    with pytest.raises(TransferError, match="holds 'features' version 99, expected 'features' version 1"):
        read_folder(tmp_path / "one", "features", 1)
