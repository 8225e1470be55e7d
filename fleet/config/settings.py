"""Configuration of a fleet: what is set, and by whom.

One value has one origin, the first of: flag of the command line, environment (`FLEET_SECTION__KEY`), file
(`configs/fleet.yaml`), default. Called by the command line; the rest of the program gets plain values.
Device files are read by `fleet.config.device_files`, whose functions are offered here too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from agents.programs.networks import NETWORKS
from agents.records import STORED_PROTOCOL_KEYS, DeviceId, DeviceSpec, Protocol
from fleet.config.base import Names as _Names
from fleet.config.base import Section as _Section
from fleet.config.daemon import ROOT_NAME, DaemonSection, PolicySection
from fleet.config.device_files import DEFAULT_HARDWARE, load_device, parse_device, unknown_device
from fleet.config.device_folder import DeviceFolder
from fleet.config.protocol import ProtocolSection
from fleet.config.yaml_files import (
    ConfigError,
    is_secret,
    kind_of,
    model_faults,
    nearest,
    parse_yaml,
    read_mapping,
    show,
)

_LOG = logging.getLogger(__name__)

#: Configuration file, under the current folder.
DEFAULT_FLEET = Path("configs/fleet.yaml")

#: Ways to adapt a model to a new device.
Strategy = Literal[
    "auto",
    "siblings",
    "multitask",
    "finetune",
    "finetune-head",
    "finetune-last",
    "masked",
    "maml",
    "momentum",
    "zero_shot",
    "nearest",
    "scratch",
]
#: What a training makes: the keys of `transfer.model.kinds.KINDS`.
ModelKind = Literal["fleet_tlp", "mtl_tlp", "both"]
#: Ways to choose the candidates that a new device measures (`transfer.adapt.sample_selection`).
Selector = Literal["paired", "few-of-each", "random", "stratified", "uncertainty", "kmeans", "diverse-fast"]

_ENV_PREFIX = "FLEET_"
_MASK = "***"


class DevicesSection(_Section):
    """Which devices measure."""

    #: Folder of the device files.
    folder: str = Field(default=str(DEFAULT_HARDWARE), min_length=1)
    #: Device ids; empty means every device of the folder that its host can be.
    ids: _Names = ()


class WorkloadsSection(_Section):
    """What is measured."""

    #: Networks whose operators are measured (`agents.programs.networks`).
    networks: _Names = Field(default=("resnet-50", "mobilenet-v2", "bert-tiny"), min_length=1)
    #: Distinct workloads chosen from the networks.
    count: int = Field(default=12, ge=1, le=10_000)
    #: Bounds on the FLOPs of a workload: tiny ones are timed by their call, huge ones take seconds a run.
    min_flops: float = Field(default=1e5, ge=0)
    max_flops: float = Field(default=1e9, gt=0)
    #: Candidates measured of each workload on each device.
    samples: int = Field(default=64, ge=1, le=1_000_000)
    #: Candidates that every workload gets, all random; the others go where the most network time can be won.
    #: None is half of `samples`.
    minimum: int | None = Field(default=None, ge=1, le=1_000_000)
    #: Share of each workload's later candidates that is random; the rest is evolved from its best ones.
    exploration: float = Field(default=0.5, ge=0, le=1)
    #: Candidates that the daily A/A run measures twice on each device; 0 switches it off.
    noise_samples: int = Field(default=20, ge=0, le=10_000)

    @field_validator("networks")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in NETWORKS:
                raise ValueError(f"unknown network {name!r}{nearest(name, NETWORKS)}")
        return names


class StoreSection(_Section):
    """Where the dataset is kept."""

    path: str = Field(default="runs/store", min_length=1)


class TrainingSection(_Section):
    """How the cost model is trained."""

    #: Which is trained: ours, the published MTL-TLP, or both, of which the better one serves each device.
    model: ModelKind = "fleet_tlp"
    #: Of FleetTLP; an MTL-TLP gets the 50 published ones for each 24.
    epochs: int = Field(default=24, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    #: Parts into which the workloads are split; each is held out once by `fleet eval`.
    folds: int = Field(default=5, ge=2, le=100)


class OnboardingSection(_Section):
    """How a new device gets its head."""

    #: Candidates measured on the new device.
    samples: int = Field(default=128, ge=0, le=1_000_000)
    strategy: Strategy = "auto"
    selector: Selector = "paired"


class FleetConfig(_Section):
    """All settings of a fleet, one section a subject."""

    devices: DevicesSection = DevicesSection()
    workloads: WorkloadsSection = WorkloadsSection()
    protocol: ProtocolSection = ProtocolSection()
    store: StoreSection = StoreSection()
    training: TrainingSection = TrainingSection()
    onboarding: OnboardingSection = OnboardingSection()
    daemon: DaemonSection = DaemonSection()

    @model_validator(mode="after")
    def _folder_beside_the_store(self) -> Self:
        """Another store has another folder for its engine, unless one is named."""
        if self.daemon.root == DaemonSection().root:
            root = str(Path(self.store.path).parent / ROOT_NAME)
            object.__setattr__(self, "daemon", self.daemon.model_copy(update={"root": root}))
        return self

    def with_devices(self, *device_ids: str) -> FleetConfig:
        """The same for some devices only."""
        return self.model_copy(update={"devices": self.devices.model_copy(update={"ids": device_ids})})

    def timing_protocol(self) -> Protocol:
        """Give the protocol as the value that travels with records."""
        return Protocol(**self.protocol.model_dump())


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
#: Settings by the key that files of earlier versions give them.
_RENAMED = {f"protocol.{key}": f"protocol.{name}" for name, key in STORED_PROTOCOL_KEYS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and who set it, fit to be shown: secrets are masked."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings that hold, and where each came from."""

    config: FleetConfig
    #: By dotted key: `flag`, `env FLEET_...`, `file ...` or `default`.
    origins: Mapping[str, str]

    def settings(self) -> tuple[Setting, ...]:
        """List every setting with its origin, in the order of the sections; JSON-ready."""
        values = self.config.model_dump(mode="json")
        return tuple(
            Setting(
                key=f"{section}.{key}",
                value=_MASK if is_secret(key) else value,
                origin=self.origins[f"{section}.{key}"],
            )
            for section, fields in values.items()
            for key, value in fields.items()
        )


def load_fleet(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
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
    file_values: Mapping[str, Any] = {}
    source = path or DEFAULT_FLEET
    if path is not None or source.exists():
        file_values = read_mapping(source)
    return resolve(file_values, str(source), os.environ if environ is None else environ, overrides or {})


def select_devices(config: FleetConfig) -> dict[DeviceId, DeviceSpec]:
    """Read the device files that a configuration names: `devices.ids`, or all of the folder.

    Which of them a host can be is for `agents.host.probe.differences` to say. Files that cannot be used and
    were not asked for are left out, each with a warning.

    Raises:
        ConfigError: See `DeviceFolder.read` and `FoundDevices.chosen`.
    """
    folder = DeviceFolder(Path(config.devices.folder))
    found = folder.read()
    for told in found.faults.values() if not config.devices.ids else ():
        _LOG.warning("left out: %s", "; ".join(told))
    return found.chosen(config.devices.ids, folder.path)


def resolve(
    file_values: Mapping[str, Any], file_name: str, environ: Mapping[str, str], overrides: Mapping[str, Any]
) -> Resolved:
    """Merge file, environment and flags over the defaults, and remember who set what.

    Args:
        file_values: The parsed file; empty if there is none.
        file_name: Its name, for origins and faults.
        environ: Environment variables.
        overrides: What flags set, by dotted key.

    Raises:
        ConfigError: See `load_fleet`.
    """
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    sources = (
        _from_file(file_values, file_name, faults),
        _from_environment(environ, faults),
        _from_flags(overrides),
    )
    for source in sources:
        for key, (value, origin) in source.items():
            section, _, name = _field_of(key).partition(".")
            values.setdefault(section, {})[name] = value
            origins[f"{section}.{name}"] = origin
    try:
        config = FleetConfig.model_validate(values)
    except ValidationError as error:
        for key, fault in model_faults(error, _known_keys(values)):
            setting = ".".join(key.split(".")[:2])
            faults.append(f"{origins.get(setting, _origin_of_section(setting, origins))}: {key}: {fault}")
    if faults:
        raise ConfigError(*(fault.removeprefix("file ") for fault in faults))
    known = {f"{section}.{key}" for section in _SECTIONS for key in _KNOWN[section]}
    return Resolved(config=config, origins={key: origins.get(key, "default") for key in sorted(known)})


def parse_setting(key: str, text: str) -> Any:
    """Read the value of one setting from text, as the environment and `--set` give it.

    The text is a YAML value; for a key that holds a list, names with commas between them will do, and for
    a key that holds text the text is taken as it is.

    Raises:
        ConfigError: The text is no YAML value.
    """
    section, _, name = _field_of(key).partition(".")
    field = _SECTIONS[section].model_fields.get(name) if section in _SECTIONS else None
    if field is None or field.annotation is str or get_origin(field.annotation) is Literal:
        return text
    if (
        get_origin(field.annotation) is tuple
        and get_args(field.annotation)[0] is str
        and not text.startswith("[")
    ):
        return [word.strip() for word in text.split(",") if word.strip()]
    return parse_yaml(text)


def _field_of(key: str) -> str:
    """The setting that a key means; files and variables of earlier versions may name it otherwise."""
    return _RENAMED.get(key, key)


def _from_file(values: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    if not values:
        return found
    schema = values.get("schema")
    if schema != 1 or isinstance(schema, bool):
        got = "it is missing" if "schema" not in values else f"got {show('schema', schema)}"
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
                setting = f"{section}.{key}"
                if setting in _RENAMED and _RENAMED[setting].partition(".")[2] in fields:
                    faults.append(f"{name}: {setting}: given twice, also as {_RENAMED[setting]}: delete one")
                elif isinstance(key, str):
                    found[setting] = (value, f"file {name}")
                else:
                    faults.append(f"{name}: {section}: key {show('', key)} is {kind_of(key)}, expected text")
    return found


def _from_environment(environ: Mapping[str, str], faults: list[str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for variable, text in environ.items():
        section, separator, name = variable.removeprefix(_ENV_PREFIX).partition("__")
        if not variable.startswith(_ENV_PREFIX) or not separator:
            continue
        if section.lower() not in _SECTIONS:
            faults.append(f"env {variable}: unknown section {section.lower()!r}{nearest(section, _SECTIONS)}")
            continue
        key = f"{section}.{name}".lower()
        try:
            found[key] = (parse_setting(key, text), f"env {variable}")
        except ConfigError as error:
            faults.extend(f"env {variable}: {key}: {fault}" for fault in error.args)
    return found


def _from_flags(overrides: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    return {key: (value, "flag") for key, value in overrides.items()}


def _known_keys(values: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Keys by mapping, those of the policies that are there included."""
    policies = values.get("daemon", {}).get("policies")
    named = policies if isinstance(policies, dict) else {}
    return {**_KNOWN, **{f"daemon.policies.{one}": _KNOWN["daemon.policy"] for one in named}}


def _origin_of_section(key: str, origins: Mapping[str, str]) -> str:
    """A flag may name a section that does not exist; its key is then not among the origins."""
    inside = [origin for name, origin in origins.items() if name.startswith(f"{key}.")]
    return inside[0] if inside else "configuration"


__all__ = [
    "DEFAULT_FLEET",
    "DEFAULT_HARDWARE",
    "ConfigError",
    "DaemonSection",
    "DevicesSection",
    "FleetConfig",
    "OnboardingSection",
    "PolicySection",
    "ProtocolSection",
    "Resolved",
    "Setting",
    "StoreSection",
    "Strategy",
    "TrainingSection",
    "WorkloadsSection",
    "load_device",
    "load_fleet",
    "parse_device",
    "parse_setting",
    "resolve",
    "select_devices",
    "unknown_device",
]
