"""Configuration of a fleet: what is set, and by whom.

One value has one origin, the first of: flag of the command line, environment (`FLEET_SECTION__KEY`), file
(`configs/fleet.yaml`), default. Called by the command line; the rest of the program gets plain values.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import BaseModel, ValidationError

from agents.records import DeviceId, DeviceSpec
from fleet.config.device_folder import DeviceFolder
from fleet.config.sections import FleetConfig, PolicySection
from fleet.config.yaml_files import (
    ConfigError,
    kind_of,
    model_faults,
    nearest,
    parse_yaml,
    read_mapping,
    show,
)
from fleet.errors import UsageError
from fleet.json_types import Json, JsonDict

_LOG = logging.getLogger(__name__)

#: Configuration file, under the current folder.
DEFAULT_FLEET = Path("configs/fleet.yaml")

_ENV_PREFIX = "FLEET_"
_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in FleetConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
_KNOWN = {
    "": list(_SECTIONS),
    **{name: list(section.model_fields) for name, section in _SECTIONS.items()},
    "daemon.policy": list(PolicySection.model_fields),
}


class FlagError(ConfigError, UsageError):
    """A configuration that cannot be used because of a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings that hold, and where each came from."""

    config: FleetConfig
    #: By dotted key: `flag`, `env FLEET_...`, `file ...` or `default`.
    origins: Mapping[str, str]

    def settings(self) -> list[JsonDict]:
        """Every `key`, its `value` and its `origin`, in the order of the sections.

        The address of the webhook may hold a secret, so it is masked.
        """
        return [
            {
                "key": f"{section}.{key}",
                "value": "***" if key == "webhook_url" and value else value,
                "origin": self.origins[f"{section}.{key}"],
            }
            for section, fields in self.config.model_dump(mode="json").items()
            for key, value in fields.items()
        ]


def load_fleet(
    path: Path | None = None,
    overrides: Json | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Read the configuration of the fleet.

    Args:
        path: The file. None means `configs/fleet.yaml`, and the defaults where that is absent.
        overrides: What flags set, by dotted key (`protocol.repeat`). None is a value like any other: leave
            out flags that were not given.
        environ: Environment variables; those of this process by default. Only names of the form
            `FLEET_SECTION__KEY` are read; a list may be written with commas.

    Raises:
        ConfigError: All faults of file, environment and flags, one line each with origin and key.
    """
    file_values: Json = {}
    source = path or DEFAULT_FLEET
    if path is not None or source.exists():
        file_values = read_mapping(source)
    return resolve(file_values, str(source), os.environ if environ is None else environ, overrides or {})


def select_devices(config: FleetConfig, *, without_retired: bool = False) -> dict[DeviceId, DeviceSpec]:
    """Read the device files that a configuration names: `devices.ids`, or all of the folder.

    Which of them a host can be is for `agents.host.device_kinds` to say. Files that cannot be used and
    were not asked for are left out, each with a warning.

    Args:
        config: Names and folder.
        without_retired: Leave out named devices that are retired, each with a warning, as the daemon does.

    Raises:
        ConfigError: See `DeviceFolder.read` and `FoundDevices.chosen`.
    """
    folder = DeviceFolder(Path(config.devices.folder))
    devices = folder.read()
    for device_faults in devices.faults.values() if not config.devices.ids else ():
        _LOG.warning("left out: %s", "; ".join(device_faults))
    names = folder.present(devices, config.devices.ids) if without_retired else config.devices.ids
    return devices.chosen(names, folder.path)


def resolve(file_values: Json, file_name: str, environ: Mapping[str, str], overrides: Json) -> Resolved:
    """Merge file, environment and flags over the defaults, and remember who set what.

    Raises:
        ConfigError: See `load_fleet`.
    """
    values: dict[str, JsonDict] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    sources = (
        _from_file(file_values, file_name, faults),
        _from_environment(environ, faults),
        {key: (value, "flag") for key, value in overrides.items()},
    )
    for source in sources:
        for key, (value, origin) in source.items():
            section, _, name = key.partition(".")
            values.setdefault(section, {})[name] = value
            origins[f"{section}.{name}"] = origin
    try:
        config = FleetConfig.model_validate(values)
    except ValidationError as error:
        policies = values.get("daemon", {}).get("policies")
        named = policies if isinstance(policies, dict) else {}
        of_policies = {f"daemon.policies.{device_id}": _KNOWN["daemon.policy"] for device_id in named}
        for key, fault in model_faults(error, {**_KNOWN, **of_policies}):
            setting = ".".join(key.split(".")[:2])
            # A flag may name a section that does not exist; its key is then not among the origins.
            inside = (origin for name, origin in origins.items() if name.startswith(f"{setting}."))
            faults.append(f"{origins.get(setting) or next(inside, 'configuration')}: {key}: {fault}")
    if faults:
        is_flag = any(fault.startswith("flag: ") for fault in faults)
        raise (FlagError if is_flag else ConfigError)(*(fault.removeprefix("file ") for fault in faults))
    keys = {f"{section}.{key}" for section in _SECTIONS for key in _KNOWN[section]}
    return Resolved(config=config, origins={key: origins.get(key, "default") for key in sorted(keys)})


def parse_setting(key: str, text: str) -> Any:
    """Read the value of one setting from text, as the environment and `--set` give it.

    The text is a YAML value; for a key that holds a list, names with commas between them will do, and for
    a key that holds text the text is taken as it is.

    Raises:
        ConfigError: The text is no YAML value.
    """
    section, _, name = key.partition(".")
    field = _SECTIONS[section].model_fields.get(name) if section in _SECTIONS else None
    if field is None or field.annotation is str or get_origin(field.annotation) is Literal:
        return text
    if get_origin(field.annotation) is tuple and not text.startswith("["):
        return [word.strip() for word in text.split(",") if word.strip()]
    return parse_yaml(text)


def _from_file(values: Json, name: str, faults: list[str]) -> dict[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {}
    if not values:
        return settings
    schema = values.get("schema")
    if schema != 1 or isinstance(schema, bool):
        got = "it is missing" if "schema" not in values else f"got {show(schema)}"
        faults.append(f"{name}: schema: this version reads schema 1, {got}: write schema: 1")
    for section, fields in values.items():
        if section == "schema" or (fields is None and section in _SECTIONS):
            continue
        if section not in _SECTIONS:
            faults.append(f"{name}: {section}: unknown key{nearest(section, [*_SECTIONS, 'schema'])}")
        elif not isinstance(fields, dict):
            faults.append(f"{name}: {section}: expected a mapping of keys to values, got {kind_of(fields)}")
        else:
            for key, value in fields.items():
                if isinstance(key, str):
                    settings[f"{section}.{key}"] = (value, f"file {name}")
                else:
                    faults.append(f"{name}: {section}: key {show(key)} is {kind_of(key)}, expected text")
    return settings


def _from_environment(environ: Mapping[str, str], faults: list[str]) -> dict[str, tuple[Any, str]]:
    settings: dict[str, tuple[Any, str]] = {}
    for variable, text in environ.items():
        section, separator, name = variable.removeprefix(_ENV_PREFIX).partition("__")
        if not variable.startswith(_ENV_PREFIX) or not separator:
            continue
        if section.lower() not in _SECTIONS:
            faults.append(f"env {variable}: unknown section {section.lower()!r}{nearest(section, _SECTIONS)}")
            continue
        key = f"{section}.{name}".lower()
        try:
            settings[key] = (parse_setting(key, text), f"env {variable}")
        except ConfigError as error:
            faults.extend(f"env {variable}: {key}: {fault}" for fault in error.args)
    return settings


__all__ = [
    "DEFAULT_FLEET",
    "ConfigError",
    "FleetConfig",
    "Resolved",
    "load_fleet",
    "parse_setting",
    "resolve",
    "select_devices",
]
