"""`.pt2` files of strangers: what is refused, and that torch is given a copy of what was checked alone."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agents.networks.archive import rewrite_archive
from agents.networks.network_name import NetworkRefusedError, read_network_name
from benchmarks.hostile_networks import (
    EXAMPLES,
    MODEL,
    WEIGHTS,
    ZIPS,
    Entries,
    archive,
    attacks,
    examples,
    honest,
    program,
    tensor_meta,
    tensors,
    with_attack,
)
from tests.network_fixtures import save_program
from tests.table_fixtures import rows


def checked(content: bytes) -> dict[str, bytes]:
    """The entries of the copy that is written of an archive."""
    copy = io.BytesIO()
    rewrite_archive(io.BytesIO(content), copy, "net")
    with zipfile.ZipFile(copy) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def refusal(content: bytes) -> str:
    with pytest.raises(NetworkRefusedError) as refused:
        checked(content)
    assert str(refused.value).isprintable()
    return str(refused.value)


def saved_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    return path


def test_the_copy_has_the_network_under_names_of_ours_and_nothing_else() -> None:
    entries = {**honest(), "extra/notes.txt": b"mine"}
    entries["models/bert.json"] = entries.pop(MODEL)
    for folder, name in (("weights", WEIGHTS), ("constants", "data/constants/model_constants_config.json")):
        entries[f"data/{folder}/bert_{folder}_config.json"] = entries.pop(name)
    entries["data/sample_inputs/bert.pt"] = entries.pop(EXAMPLES)
    copy = checked(archive(entries, root="any name"))
    assert set(copy) == {f"network/{name}" for name in honest() if "serialization_id" not in name}
    assert copy["network/data/weights/weight_0"] == honest()["data/weights/weight_0"]
    written = json.loads(copy[f"network/{MODEL}"])
    assert (
        written["graph_module"]["graph"]["tensor_values"]
        == program()["graph_module"]["graph"]["tensor_values"]
    )
    assert [node["metadata"] for node in written["graph_module"]["graph"]["nodes"]] == [{}] * 3
    assert copy[f"network/{EXAMPLES}"] == b"", "torch would fall back to unpickling anything"


@pytest.mark.parametrize("attack", attacks())
def test_no_text_that_is_run_gets_into_the_copy(attack: Any) -> None:
    contents = [archive(with_attack(Random(seed), "/watched/x", attack)) for seed in range(24)]
    assert any(b"/watched/x" in content for content in contents)
    for content in contents:
        try:
            copy = checked(content)
        except NetworkRefusedError:
            continue
        for text in (b"/watched", b"__import__", b"antigravity", b"os.system", b"defaultdict"):
            assert text not in b"".join(copy.values())


#: Changes of the parts of a program, and the words of its refusal; OPEN is a tensor of open sizes.
UNLISTED = """
    module  {"hooks": []}                   -> graph_module: has the unknown key 'hooks'
    node    {"target": "torch.os.system"}   -> expected a tensor operator of torch, got 'torch.os.system'
    values  {"x": OPEN}                     -> has dynamic shapes; export it with fixed ones (no dynamic
    values  {"relu": OPEN}                  -> what aten.relu.default gives depends on values
    graph   {"inputs": [{"as_tensor": {"name": "class"}}]} -> as_tensor.name: expected a name, got 'class'
    version {"major": 9}                    -> has version 9 of its schema
    program {"guards_code": ["x"], "verifiers": ["EVIL"]} -> verifiers.0: 'EVIL' is none of
"""
OPEN = tensor_meta() | {"sizes": [{"as_expr": {"expr_str": "1"}}, {"as_int": 4}]}


@pytest.mark.parametrize(("change", "message"), rows(UNLISTED))
def test_what_is_not_listed_is_refused_by_its_name(change: str, message: str) -> None:
    made, (part, changes) = program(), change.split(maxsplit=1)
    module, graph = made["graph_module"], made["graph_module"]["graph"]
    parts = {
        **{"program": made, "module": module, "graph": graph, "version": made["schema_version"]},
        **{"node": graph["nodes"][0], "values": graph["tensor_values"]},
    }
    parts[part].update(json.loads(changes.replace("OPEN", json.dumps(OPEN))))
    assert message in refusal(archive({**honest(), MODEL: json.dumps(made).encode()}))


def _other_weight(**changes: Any) -> Entries:
    return {**honest(), WEIGHTS: tensors(WEIGHTS, **changes)}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (_other_weight(tensor_meta=tensor_meta((3, 4))), "its shape [3, 4] needs 12 elements"),
        (_other_weight(tensor_meta=tensor_meta(dtype=8)), "its shape [2, 4] needs 8 elements"),
        (
            _other_weight(tensor_meta=tensor_meta((1 << 20, 1 << 13)) | {"strides": [{"as_int": 0}] * 2}),
            "its weights have",
        ),
        (_other_weight(path_name="../x"), "lies in '../x', which the archive does not have"),
        (_other_weight(use_pickle=True), "is a pickle, which is never unpickled"),
        ({"models/Model.json": honest()[MODEL], **honest()}, "twice"),
        ({**honest(), "data/weights/model.pt": b"x"}, "entry 'data/weights/model.pt'"),
        ({**honest(), "data/aotinductor/model/a.so": b"x"}, "holds code or objects"),
        ({**honest(), "byteorder": b"big"}, "entry byteorder: expected little"),
        ({**honest(), EXAMPLES: examples(b"]" * 4 + b"(" * 200_000)}, "hold more than tensors"),
        ({**honest(), MODEL: b'{"a":' * 100_000}, "nests too deeply"),
        ({**honest(), MODEL: b"[" + b"[]," * 2_100_000 + b"0]"}, "more than 2,000,000 values"),
    ],
)
def test_weights_lie_within_their_bytes_and_bombs_are_refused(entries: Entries, message: str) -> None:
    assert message in refusal(archive(entries))


def test_a_directory_of_millions_of_entries_is_not_read() -> None:
    size = 17 << 20
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 9, 9, size, 0, 0)
    assert "its directory has more than" in refusal(b"\0" * size + tail)


@pytest.mark.parametrize("kind", ZIPS, ids=lambda kind: kind.__name__.strip("_"))
def test_of_two_readings_of_a_zip_file_the_checked_one_is_written(kind: Any) -> None:
    good, code = honest(), {**honest(), MODEL: honest()[MODEL].replace(b'"c_c"', b'"evil"')}
    for seed in range(16):
        content = kind(Random(seed), good, code, MODEL)
        try:
            copy = checked(content)
        except NetworkRefusedError:
            continue
        # Python's reader, which checked it, saw this one.
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            name = next(name for name in opened.namelist() if name.endswith(MODEL))
            is_evil = b'"evil"' in opened.read(name)
        assert (b'"evil"' in copy[f"network/{MODEL}"]) is is_evil
        assert len([name for name in copy if "models/" in name]) == 1


def loaded_with_outputs(path: Path, inputs: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    import torch

    from agents.networks.sources import load

    loaded = load(read_network_name(str(path)))
    given = loaded.program.module(check_guards=False)(*inputs)
    return loaded, torch.utils._pytree.tree_leaves(given)


def test_an_archive_written_by_hand_is_one_that_torch_loads(tmp_path: Path) -> None:
    import torch

    loaded, outputs = loaded_with_outputs(saved_file(tmp_path, archive(honest())), (torch.ones(2, 4),))
    assert torch.equal(outputs[0], 2.0 * (torch.arange(8.0).reshape(2, 4) + 1))
    assert loaded.inputs == (("x", (2, 4), "float32"),)
    assert [value.shape for value in loaded.examples] == [(2, 4)]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about itself
def test_a_network_that_torch_would_run_code_of_runs_none(tmp_path: Path) -> None:
    """torch runs the guards of a file that it is given itself, in making a module of it."""
    import torch

    from agents.networks.sources import load

    planted = tmp_path / "planted"
    made = program() | {"guards_code": [f"__import__('os').mkdir('{planted}') or True"]}
    path = saved_file(tmp_path, archive({**honest(), MODEL: json.dumps(made).encode()}))
    loaded = load(read_network_name(str(path))).program
    loaded.module()(torch.ones(2, 4))
    loaded.run_decompositions()
    assert not planted.exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about itself
def test_a_network_of_many_kinds_of_values_gives_the_outputs_of_its_module(tmp_path: Path) -> None:
    import torch

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("scale", torch.full((4,), 3.0))

        def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> Any:
            with torch.no_grad():
                doubled = x * 2
            with torch.autocast("cpu", enabled=False):
                hidden = self.linear(doubled) * self.scale + more["z"]
            lowest = torch.full_like(hidden, float("-inf"))
            return {"y": torch.where(hidden > 0, hidden, lowest), "all": (hidden.split(2, 1), None)}

    path = tmp_path / "mixed.pt2"
    inputs = (torch.randn(2, 4), {"z": torch.randn(4)})
    module = Mixed()
    save_program(module, inputs, path)
    _, outputs = loaded_with_outputs(path, tuple(torch.utils._pytree.tree_leaves(inputs)))
    for one, other in zip(outputs, torch.utils._pytree.tree_leaves(module(*inputs)), strict=True):
        assert one is other is None or torch.equal(one, other)
