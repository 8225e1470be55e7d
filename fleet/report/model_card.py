"""The card of a model version, in Markdown or HTML: its data, its quality, its limits.

`fleet models show VERSION --card FILE` calls `write_card` with what `fleet.models.views.show_version` gives.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, TemplateError

from agents.files import write_durably
from fleet.errors import FleetError
from fleet.json_types import Json
from fleet.page_template import template_engine
from fleet.report.words import scored

#: Endings of a card's file, and the template of each.
TEMPLATES = {".md": "model_card.md", ".html": "model_card.html"}


def write_card(details: Json, path: Path) -> None:
    """Write the card of a version from what `show_version` gives; the file's ending chooses the form.

    Raises:
        FleetError: The ending is none of `TEMPLATES`, or the manifest lacks a value of the card.
    """
    name = TEMPLATES.get(path.suffix)
    if name is None:
        raise FleetError(f"--card {path}: expected a name that ends in {' or '.join(TEMPLATES)}")
    try:
        environment = card_environment(is_html=name.endswith(".html"))
        content = environment.get_template(name).render(
            shown=details,
            manifest=details["manifest"],
            heads=[_head(details, head) for head in details["manifest"]["heads"]],
        )
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A manifest from elsewhere may lack a value of the card, or have another type there.
        raise FleetError(
            f"no card of {details['version']}: its manifest lacks a value of the card ({error})"
        ) from error
    write_durably(path, content.encode())


def card_environment(*, is_html: bool = False) -> Environment:
    """The template engine of cards, those of datasets too; `cell` writes any text, and `day` a moment."""
    environment = template_engine(is_html=is_html)
    environment.filters |= {"day": _day, "cell": str if is_html else _cell}
    return environment


def _head(details: Json, name: str) -> dict[str, str]:
    """The lines of one head in the card."""
    manifest = details["manifest"]
    judged = manifest.get("verdicts", {}).get(name, {}).get("judged") or {}
    return {
        "device": name,
        "serves": "yes" if name in details["serves"] else "no",
        "records": f"{manifest.get('records', {}).get(name, 0):,}",
        "until": _day(manifest.get("data_until", {}).get(name)),
        "top1": _score(judged.get("top1")),
        "top5": _score(judged.get("top5")),
        "tau": _score(judged.get("tau")),
        "workloads": str(judged.get("workloads", "not judged")),
        "reason": str(manifest.get("verdicts", {}).get(name, {}).get("reason", "not judged")),
    }


def _score(interval: list[float] | None) -> str:
    """Value and its interval, or that there is none."""
    return scored(interval[0], interval[1:]) if interval else "not judged"


def _day(at_secs: float | None) -> str:
    return datetime.fromtimestamp(at_secs, UTC).strftime("%Y-%m-%d %H:%M UTC") if at_secs else "not known"


def _cell(text: object) -> str:
    """Text of a cell of Markdown: no line end, no bar, no markup of HTML."""
    clean = "".join(character if character.isprintable() else " " for character in str(text))
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")
