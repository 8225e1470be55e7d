"""What every kind of request has: arguments with bounds and help, a check against the fleet, and its work.

A kind is one class in a module of its own beside this one (`fleet.requests.kinds` lists them). The command
line's options, the body that the API takes, `fleet.run` and the driver are made from it, so a bound or a
refusal stands once. Knows no transport, no engine and no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from agents.networks.network_name import NetworkRefusedError, read_network_name, with_absolute_path
from agents.records import DeviceId, DeviceSpec
from fleet.core.request_words import Request, RequestKind
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.collection.settings import Display
    from fleet.config.settings import FleetConfig
    from fleet.requests.session import EngineSession
    from fleet.requests.work import Work


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


def _network(text: str) -> str:
    try:
        return with_absolute_path(text)
    except NetworkRefusedError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(min_length=1, max_length=200)]
#: One of ours, a file on the coordinator's host, or an architecture (`agents.networks.network_name`).
Network = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_network)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, Field(ge=0, le=1_000_000)]
Seed = Annotated[
    Annotated[int, Field(ge=0, lt=1 << 31)] | None,
    Flag("--seed"),
    Setting("training.seed"),
    Field(description="Of everything random (training.seed)."),
]
Epochs = Annotated[
    Count | None,
    Flag("--epochs"),
    Setting("training.epochs"),
    Field(description="Passes over the data (training.epochs)."),
]
Networks = Annotated[
    list[Network] | None,
    Flag("--network"),
    Setting("workloads.networks"),
    Field(
        description="A name such as bert-tiny, a .pt2 or .onnx file, transformers:NAME or torchvision:NAME; "
        "may be given again (workloads.networks)."
    ),
]


class RequestArguments(BaseModel):
    """Arguments of a request, strictly read; what is left out is as in the settings."""

    # Built at the first use: every command loads all kinds, for their options.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    kind: ClassVar[RequestKind]
    #: Whether an engine does it; a command without a daemon does the others alone.
    needs_engine: ClassVar[bool] = True
    #: Whether some of its kind read or make a model version.
    uses_models: ClassVar[bool] = True
    #: Whether it only reads the store: then it can be done beside a daemon too.
    is_reader: ClassVar[bool] = False

    #: Runs inside of the command that asked for it, and ends with it.
    embedded: bool = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read arguments that came from outside.

        Raises:
            RequestRefused: One is missing, unknown or out of its bounds; the message names it.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = first["msg"].removeprefix("Value error, ")
            what = what[:1].lower() + what[1:]
            if not first["loc"]:
                raise RequestRefused(f"{cls.kind}: {what}") from None
            got = "" if first["type"] == "missing" else f", got {first['input']!r:.80}"
            raise RequestRefused(f"{cls.kind}: {'.'.join(map(str, first['loc']))}: {what}{got}") from None

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
        """Give the arguments as JSON holds them, without those that nobody gave."""
        return self.model_dump(exclude_unset=True)

    def setting_changes(self) -> dict[str, Any]:
        """The settings that it replaces, by dotted key."""
        pairs = ((setting_of(field), getattr(self, name)) for name, field in type(self).model_fields.items())
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
        known = session.store().devices()
        return {device_id: known[device_id].spec for device_id in self.device_ids}

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


class ManyDevices(RequestArguments):
    """A request for some devices of the fleet, or for all that are there when it comes."""

    devices: Annotated[list[Name], Flag("--device")] = Field(
        default=[], description="Device id; may be given again (all that fit this host)."
    )

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """See `RequestArguments.check`; one for all devices is for those that are there now."""
        return super().check(fleet) | {"devices": sorted(set(self.devices) or self.places(fleet))}


def setting_of(field: FieldInfo) -> str:
    """The key of the setting that an argument replaces; empty for most."""
    return next((part.key for part in field.metadata if isinstance(part, Setting)), "")


def listed(names: Iterable[str]) -> str:
    """Names for a message, in order."""
    return ", ".join(sorted(map(str, names))) or "none"
