"""The alert rules that are shipped: each names metrics and labels that a running daemon really exports."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.api.server import ApiServer
from tests.fleet.api.test_api import a_view, samples, sources_of

RULES = Path(__file__).parents[3] / "docs" / "prometheus" / "alerts.yaml"
_METRIC = re.compile(r"\b(?:fleet|process)_[a-z_]+\b")
_MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Every sample that the endpoint gives, while a training runs: its labels by its name."""
    folder = tmp_path_factory.mktemp("api")
    view = a_view() | {"training": {"state": "running", "failures": {"cpu": 2}}}
    found: dict[str, list[dict[str, str]]] = {}
    with closing(ApiServer(sources_of(folder / "models", view=lambda: view), folder)) as server:
        for sample in samples(server, folder):
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_the_daemon_exports(
    rule: dict[str, Any], exported: dict[str, list[dict[str, str]]]
) -> None:
    named = _METRIC.findall(rule["expr"])
    assert named or rule["expr"].startswith("up{")
    for name in named:
        assert name in exported, f"{name} is no metric of the daemon"
    for label, kind, text in _MATCHER.findall(rule["expr"]):
        if label == "job":
            assert text == "tensor-fleet", "as docs/api.md names it"
            continue
        seen = {labels[label] for name in named for labels in exported[name] if label in labels}
        assert set(text.split("|") if kind == "=~" else [text]) <= seen
    words = " ".join(rule["annotations"].values())
    labels = set(re.findall(r"\$labels\.(\w+)", words))
    assert labels <= {label for name in named for one in exported[name] for label in one}
