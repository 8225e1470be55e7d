"""What every kind of request has: arguments with bounds and help, a check against the fleet, and its work.

A kind is one class in a module of its own beside this one (`fleet.requests.kinds` lists them). The command
line's options, the body that the API takes, `fleet.run` and the driver are made from it, so a bound or a
refusal stands once. Knows no transport, no engine and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from agents.networks.network_name import NetworkRefusedError, read_network_name, with_absolute_path
from agents.records import DeviceId, DeviceSpec
from fleet.core.words import Request, RequestKind
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work

_Struct = TypeVar("_Struct", bound=Struct)


class RequestRefused(FleetError):  # noqa: N818 - what became of the request, named so
    """A request that is none, or that the fleet cannot do; the message says what to change."""


class RequestConflict(RequestRefused):
    """Another request stands in the way: one with the same id, or one that asks for the same."""


class RequestUnknown(RequestRefused):
    """There is no request of this id."""


@dataclass(frozen=True, slots=True)
class Flag:
    """How an argument stands on the command line: `--name`, or `NAME` for a place without a flag.

    Arguments without one are not offered there.
    """

    name: str
    #: What the user gives is a path of this host; the request holds it whole.
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """The dotted key of the setting that an argument replaces for its request."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFleet:
    """What requests may be about."""

    #: Family of each device, those that only the store knows included.
    families: Mapping[str, str]
    #: Whether this coordinator trains.
    trains: bool
    #: Devices that it looks after.
    devices: frozenset[str] = frozenset()
    #: Folders in which requests may read and write; None for any, where who asks runs the coordinator.
    folders: tuple[Path, ...] | None = None


Name = Annotated[str, Meta(min_length=1, max_length=200)]
#: One of ours, a file on the coordinator's host, or an architecture (`agents.networks.network_name`).
Network = Annotated[str, Meta(min_length=1, max_length=4000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=1_000_000)]
Seed = Annotated[
    Annotated[int, Meta(ge=0, lt=1 << 31)] | None,
    Flag("--seed"),
    Setting("training.seed"),
    Meta(description="Random seed (training.seed)."),
]
Epochs = Annotated[
    Count | None,
    Flag("--epochs"),
    Setting("training.epochs"),
    Meta(description="Passes over the data (training.epochs)."),
]
Networks = Annotated[
    list[Network] | None,
    Flag("--network"),
    Setting("workloads.networks"),
    Meta(
        description="A name such as bert-tiny, a .pt2 or .onnx file, transformers:NAME or torchvision:NAME; "
        "may be given again (workloads.networks)."
    ),
]


class RequestArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of a request; what is left out is as in the settings."""

    kind: ClassVar[RequestKind]
    #: Whether an engine does it; a command without a daemon does the others alone.
    needs_engine: ClassVar[bool] = True
    #: Whether some of its kind read or make a model version.
    uses_models: ClassVar[bool] = True
    #: Whether it only reads the store: then it can be done beside a daemon too.
    is_reader: ClassVar[bool] = False

    #: Runs inside of the command that asked for it, and ends with it.
    embedded: bool = False

    def __post_init__(self) -> None:
        """Make files of networks whole paths: who does the work may be in another folder."""
        networks = getattr(self, "networks", None)
        if networks:
            try:
                force_setattr(self, "networks", list(map(with_absolute_path, networks)))
            except NetworkRefusedError as error:
                raise ValueError(f"networks: {error}") from None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read arguments that came from outside.

        Raises:
            RequestRefused: One is missing, unknown or out of its bounds; the message names it.
        """
        return read_struct(cls, dict(values), f"{cls.kind}: ")

    @property
    def needs_models(self) -> bool:
        """Whether it reads or makes a model version."""
        return self.uses_models

    @property
    def device_ids(self) -> list[DeviceId]:
        """The devices that it names; none where it is for all, or for no device of the fleet."""
        device, devices = getattr(self, "device", None), getattr(self, "devices", None)
        return [DeviceId(device)] if device else list(map(DeviceId, devices or ()))

    @property
    def host_paths(self) -> list[Path]:
        """The files and folders of the coordinator's host that it reads or writes."""
        paths = (read_network_name(network).path for network in getattr(self, "networks", None) or ())
        return [path for path in paths if path is not None]

    def values(self) -> dict[str, Any]:
        """Give the arguments as JSON holds them, without those that are as if left out."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def setting_changes(self) -> dict[str, Any]:
        """The settings that it replaces, by dotted key."""
        pairs = ((part.setting, getattr(self, part.name)) for part in arguments_of(type(self)))
        return {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in pairs
            if key and value not in (None, [])
        }

    def settings(self, settings: FleetConfig) -> FleetConfig:
        """Give the coordinator's settings with what the request says on top of them."""
        from fleet.config.settings import FleetConfig

        values = settings.model_dump()
        for key, value in self.setting_changes().items():
            section, _, name = key.partition(".")
            values[section][name] = value
        return FleetConfig.model_validate(values)

    def check_files(self, settings: FleetConfig) -> None:
        """Look at the files that it names, before anything begins; for a command on their host.

        Raises:
            AgentError, FleetError: One is not there.
        """
        for network in getattr(self, "networks", None) or ():
            read_network_name(network).check_file()

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """Compare it with the fleet, and give the arguments that the state is to keep.

        Raises:
            RequestRefused: It names what is not there, or asks for what this fleet does not do.
        """
        present = self.places(fleet)
        if unknown := [device for device in self.device_ids if device not in present]:
            raise RequestRefused(
                f"{self.kind}: no device {unknown[0]!r:.80} here; there are: {listed(present)}"
            )
        return self.values()

    def places(self, fleet: KnownFleet) -> frozenset[str]:
        """The devices that it may be about."""
        return fleet.devices

    def conflict(self, other: Request, fleet: KnownFleet) -> str:
        """Say what an open request of the same kind does that this one asks for; empty where nothing."""
        present = self.places(fleet)
        several, single = other.arguments.get("devices", ()), other.arguments.get("device")
        theirs = {*several, *([single] if single else [])} or present
        shared = (set(self.device_ids) or present) & theirs
        return f"works on {listed(shared)}" if shared else ""

    def check_work(self, work: Work) -> None:
        """Refuse what its driver could not begin.

        Raises:
            FleetError: Something that it starts from is missing.
        """

    def wait_for_devices(self, session: EngineSession, display: Display) -> dict[DeviceId, DeviceSpec]:
        """Wait until its devices take jobs, and give what the store knows of each."""
        display.phase("wait", 0)
        session.ready(self.device_ids)
        entries = session.store().devices()
        return {device_id: entries[device_id].spec for device_id in self.device_ids}

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """Do it, as its driver.

        Returns:
            What came of it, JSON-ready.

        Raises:
            FleetError, AgentError, TransferError: It cannot be done; what was measured is stored.
        """
        raise AssertionError(f"a {self.kind} has no driver")

    def perform_alone(self, work: Work, display: Display) -> dict[str, Any]:
        """Do it without an engine; for kinds that need none."""
        raise AssertionError(f"a {self.kind} needs an engine")


class ManyDevices(RequestArguments, frozen=True, kw_only=True):
    """A request for some devices of the fleet, or for all that are there when it comes."""

    devices: Annotated[
        list[Name],
        Flag("--device"),
        Meta(description="Device id; may be given again (all that fit this host)."),
    ] = field(default_factory=list)

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """See `RequestArguments.check`; one for all devices is for those that are there now."""
        return super().check(fleet) | {"devices": sorted(set(self.devices) or self.places(fleet))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a kind, as the command line and the settings see it."""

    name: str
    #: Of a value, without bounds, None and list.
    type: Any
    is_list: bool
    #: The words that it may be; empty for most.
    choices: tuple[str, ...]
    #: What it is when it is left out; `msgspec.NODEFAULT` if it must be given.
    default: Any
    flag: Flag | None
    setting: str
    help: str


def arguments_of(kind: type[Struct]) -> list[Argument]:
    """The arguments of a kind, in the order of their declaration; those of all kinds come last."""
    hints = get_type_hints(kind, include_extras=True)
    arguments = []
    for part in msgspec.structs.fields(kind):
        notes = getattr(hints[part.name], "__metadata__", ())
        value_type, is_list, choices = _shape(hints[part.name])
        help_text = [note.description for note in notes if isinstance(note, Meta) and note.description]
        arguments.append(
            Argument(
                name=part.name,
                type=value_type,
                is_list=is_list,
                choices=choices,
                default=[] if part.default_factory is list else part.default,
                flag=next((note for note in notes if isinstance(note, Flag)), None),
                setting=next((note.key for note in notes if isinstance(note, Setting)), ""),
                help=help_text[-1] if help_text else "",
            )
        )
    return arguments


def _shape(annotation: Any) -> tuple[Any, bool, tuple[str, ...]]:
    """The type of a value without bounds and None, whether there are several, and the words it may be."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape(inner[0])
    if origin in (Union, UnionType):
        return _shape(next(part for part in inner if part is not NoneType))
    if origin is Literal:
        return str, False, inner
    if origin is list:
        return _shape(inner[0])[0], True, ()
    if isinstance(annotation, EnumType):
        return str, False, tuple(annotation)
    return annotation, False, ()


def read_struct(kind: type[_Struct], values: Any, start: str = "") -> _Struct:
    """Read what came from outside; `start` begins the message of a refusal.

    Raises:
        RequestRefused: A field is missing, unknown or out of its bounds; the message names it.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(f"{start}{_fault(kind, str(error), values):.400}") from None


def _fault(kind: type[Struct], text: str, values: Any) -> str:
    """What is wrong, with the place and the value, by what msgspec says of it."""
    text = text[:1].lower() + text[1:]
    what, _, place = text.rpartition(" - at `$")
    place = place.strip("`.")
    try:
        value = _value_at(values, place)
    except (LookupError, TypeError, ValueError):
        return text  # no place: a name or a text of the request itself looks like one
    choices = next((argument.choices for argument in arguments_of(kind) if argument.name == place), ())
    what = f"expected one of {', '.join(choices)}" if choices else what
    return f"{place}: {what}, got {value!r:.80}" if place else text


def _value_at(values: Any, place: str) -> Any:
    """The value at a place such as `paths[0]`."""
    for key in re.findall(r"[^.\[\]]+", place):
        values = values[int(key)] if isinstance(values, list) else values[key]
    return values


def listed(names: Iterable[str]) -> str:
    """Names for a message, in order."""
    return ", ".join(sorted(map(str, names))) or "none"
