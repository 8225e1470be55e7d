from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.records import Outcome
from fleet.interchange.dialects.helion import read_config
from fleet.interchange.logs.json_items import MAX_ITEM_CHARS, JsonItems
from fleet.interchange.logs.json_values import Rejected
from tests.knob_fixtures import (
    cache_text,
    cached,
    t4_text,
)
from tests.log_fixtures import DATA, read_lines, records, run

HUB = DATA / "kernel_tuner_hub"


@pytest.mark.parametrize("make", [cache_text, t4_text])
def test_cut_file_gives_what_came_before(tmp_path: Path, make: Any) -> None:
    text = make([cached(number) for number in range(20)])
    for share in (0.1, 0.4, 0.75, 0.995):
        measured, reasons = read_lines(tmp_path, text[: int(len(text) * share)])
        assert len(measured) >= 20 * share - 5
        assert reasons.total() <= 1
        assert set(reasons) <= {"truncated", "not JSON"}


#: What a cache says of itself, and what of one result, of which nothing is imported.
HOSTILE_HEADS = """
problem_size: [.nan, 4]
problem_size: .inf
device_name: "NVIDIA \\ud800"
kernel_name: 7
kernel_name: KKKKK
"""
HOSTILE_RESULTS = """
use_shmem: .inf
use_shmem: 1180591620717411303424
times: [1, "2"]
times: [-1.0]
times: []
timestamp: soon
timestamp: "9999-01-01"
compile_time: -1
benchmark_time: 1.0e+300
time: MeltedConfig
"""
#: Other files, and how many results of them are imported.
HOSTILE = {
    "deep": (
        cache_text([cached(0, block_size_x=0)]).replace('"block_size_x": 0', '"block_size_x": ' + "[" * 9000),
        0,
    ),
    "not an object": (cache_text([]).replace('"cache": {', '"cache": {"a": 1, "b": [], "c": null'), 0),
    "knob missing": (cache_text([{key: one for key, one in cached(0).items() if key != "use_shmem"}]), 0),
    "one bad": (cache_text([cached(0), cached(1, times=None, time=None), cached(2)]), 2),
    "twice the same": (cache_text([cached(0), cached(0)]), 1),
    "still open": (cache_text([cached(0), cached(1)])[:-3] + ",", 2),
    "head behind": ('{"cache": {"a": {"time": 1}}, "kernel_name": "k"}', 0),
    "many values": ("{" + ",".join(f'"schema_version{n or ""}": 1' for n in range(99)) + "}", 0),
}
for line in HOSTILE_HEADS.replace("KKKKK", "k" * 5000).strip().splitlines():
    HOSTILE[line[:30]] = cache_text([cached(0)], **yaml.safe_load(line)), 0
for line in HOSTILE_RESULTS.strip().splitlines():
    HOSTILE[line] = cache_text([cached(0, **yaml.safe_load(line))]), 0


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_caches_end_in_counted_reasons(tmp_path: Path, name: str) -> None:
    text, imported = HOSTILE[name]
    measured, reasons = read_lines(tmp_path, text)
    assert len({(entry.trace, entry.result) for entry in measured}) == imported
    assert (reasons == {}) == (name in ("twice the same", "still open"))
    assert not [reason for reason in reasons if "reader fault" in reason]


CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "Config()": {},
    "helion.Config(a=[1, -2.5e3], b='it\\'s', c=\"x, y\")": {"a": [1, -2500.0], "b": "it's", "c": "x, y"},
    "Config(a=(1,), b={'k': None})": {"a": [1], "b": {"k": None}},
    **dict.fromkeys(["", "Config", "Config(a=f())", "Config(a=1) + 1", "Config(a=b)", "x" * 70000]),
    **dict.fromkeys(["Config(**{'a': 1})", "Config(a={1})", "Config(a=1e999)", "Config(1)", "Config(a=b'')"]),
    **dict.fromkeys(["Config(a=" + "[" * 30000 + "]" * 30000 + ")", "Config(a=1" + "+1" * 30000 + ")"]),
}


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_configurations_of_helion_are_read_as_data(text: str) -> None:
    value = CONFIGURATIONS[text]
    if value is None:
        with pytest.raises(Rejected):
            read_config(text)
    else:
        assert read_config(text) == value


def test_long_item_is_not_held() -> None:
    chunks = iter([b'{"cache": {"a": "' + b"x" * (MAX_ITEM_CHARS + 9), *[b"y" * (1 << 20)] * 64])
    with pytest.raises(Rejected, match="too long"):
        list(JsonItems(chunks, {"cache"}))
    assert len(list(chunks)) > 50


def test_items_in_any_layout() -> None:
    cache = {f"k{place}": {"n": place, "t": [0.5, None]} for place in range(50)}
    value = {"head": [1], "cache": cache, "x": 2}
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, indent="")):
        for size in (1, 7, 1 << 20):
            raw = text.encode()
            items = JsonItems((raw[at : at + size] for at in range(0, len(raw), size)), {"cache"})
            assert list(items) == list(cache.values())
            assert items.head == {"head": [1], "x": 2}


@pytest.mark.data
@pytest.mark.skipif(not HUB.is_dir(), reason="../shared/data is not beside the checkout")
def test_real_spaces(tmp_path: Path) -> None:
    report = run(tmp_path, *(HUB / "convolution_milo" / f"A100{name}.json.gz" for name in ("", "_T4")))
    assert (report.imported, report.duplicates, report.rejected) == (4362, 4362, 0)
    assert report.counts.outcomes[Outcome.RUN_FAILED] == 310
    assert len({one.candidate_id for one in records(tmp_path)}) == 4362
