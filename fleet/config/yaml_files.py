"""Strict reading of YAML: a file becomes a mapping, a mapping becomes a model, each fault becomes one line.

Called by `fleet.config.device_files` and `fleet.config.settings`. Knows nothing of devices or of what a key
means.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fleet.errors import FleetError

#: Largest YAML file that is read; a device takes about one KiB.
MAX_YAML_BYTES = 256 * 1024

_SHOWN_CHARACTERS = 60
#: Whole numbers from here on are shown with an exponent.
_MOST_WRITTEN_OUT = 10**15

# PyYAML raises these, beside its own YAMLError, on malformed scalars with a tag or an impossible date.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class ConfigError(FleetError):
    """A configuration that cannot be used; each positional argument is one fault, on one line."""

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.args)


class _StrictLoader(yaml.SafeLoader):
    """The safe loader without silent surprises: a repeated key or an alias is refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            # A few nested aliases can stand for gigabytes; nothing here needs them.
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        line_by_key: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in line_by_key:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key!r} is given twice (first in line {line_by_key[key]})",
                    key_node.start_mark,
                )
            line_by_key[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parse one YAML document.

    Raises:
        ConfigError: The text is no YAML, with the line; or it repeats a key or uses an alias.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{where}bad YAML: {error.problem or error.context}") from error
    except _YAML_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"bad YAML: {_cut(reason)}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping with text keys.

    Raises:
        ConfigError: The file cannot be read or is not that; the message starts with its path.
    """
    try:
        size = path.stat().st_size
        if size > MAX_YAML_BYTES:
            raise ConfigError(
                f"{path}: {size} bytes, but at most {MAX_YAML_BYTES} are read: is it a config file?"
            )
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    try:
        value = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {fault}" for fault in error.args)) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got {kind_of(value)}")
    odd = [key for key in value if not isinstance(key, str)]
    if odd:
        raise ConfigError(*(f"{path}: key {show(key)} is {kind_of(key)}, expected text" for key in odd))
    return value


def key_lines(path: Path) -> dict[str, int]:
    """The line of each dotted key of a YAML file, from 1 on; empty where the file cannot be read any more."""
    lines: dict[str, int] = {}

    def note(node: yaml.Node | None, within: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            name = f"{within}{key.value}"
            lines.setdefault(name, key.start_mark.line + 1)
            note(value, f"{name}.")

    try:
        note(yaml.compose(path.read_text("utf-8"), Loader=_StrictLoader), "")
    except (OSError, *_YAML_ERRORS):
        return {}
    return lines


def model_faults(
    error: ValidationError, keys_by_mapping: Mapping[str, Iterable[str]]
) -> list[tuple[str, str]]:
    """Turn pydantic's errors into (dotted key, sentence) pairs.

    Args:
        error: What pydantic raised.
        keys_by_mapping: Keys that each mapping may hold, by its own dotted key (empty for the outermost).
    """
    faults = []
    for entry in error.errors(include_url=False):
        key = ".".join(str(part) for part in entry["loc"])
        if entry["type"] == "extra_forbidden":
            *parents, last = map(str, entry["loc"])
            # A flag that reaches too deep (`daemon.policy.windows`) leaves dots in the last one.
            word = last.partition(".")[0]
            faults.append((key, f"unknown key{nearest(word, keys_by_mapping.get('.'.join(parents), ()))}"))
        elif entry["type"] == "missing":
            faults.append((key, "missing"))
        elif entry["type"] == "value_error":
            faults.append((key, str(entry["ctx"]["error"])))
        else:
            sentence = entry["msg"].replace("Input should be", "must be")
            cure = _as_number(entry["type"], entry["input"])
            faults.append((key, f"{sentence}, got {show(entry['input'])}{cure}"))
    return faults


def _as_number(fault: str, value: Any) -> str:
    """End of a sentence: how to write a text that was meant as a number, such as `1e6`, in YAML."""
    if fault not in ("int_type", "float_type") or not isinstance(value, str):
        return ""
    try:
        number = float(value)
        meant = int(number) if number.is_integer() and abs(number) < _MOST_WRITTEN_OUT else number
    except (ValueError, OverflowError):
        return ""
    return f": write {yaml.safe_dump(meant).split()[0]}" if math.isfinite(number) else ""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Give the end of a sentence about an unknown word: the nearest known one, or all of them."""
    words = sorted(choices)
    close = difflib.get_close_matches(word.lower(), words, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(words)}" if words else ""


def show(value: Any) -> str:
    """Write a value for a message: short, with its kind where that is the likely fault."""
    if value is None:
        return kind_of(value)
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python refuses to write an integer of thousands of digits.
        return f"a very large {type(value).__name__}"
    return f"the text {_cut(text)}" if isinstance(value, str) else _cut(text)


def kind_of(value: Any) -> str:
    """Name the kind of a YAML value for people."""
    if value is None:
        return "nothing (an empty file or value)"
    names = {
        bool: "yes or no",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def _cut(text: str) -> str:
    clean = text.encode("ascii", "backslashreplace").decode() if not text.isprintable() else text
    return clean if len(clean) <= _SHOWN_CHARACTERS else clean[: _SHOWN_CHARACTERS - 3] + "..."
