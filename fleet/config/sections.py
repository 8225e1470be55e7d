"""The settings of a fleet, one section a subject: keys, types, bounds and defaults.

Called by `fleet.config.settings`, which offers them; `fleet.config.device_files` reads a device's protocol by
them. Knows no file and no origin of a value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_type_hints
from urllib.parse import urlsplit

from msgspec.structs import fields
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from agents.networks.network_name import NetworkRefusedError, with_absolute_path
from agents.protocol import Protocol, protocol_bounds
from fleet.config.choices import ModelKind, Rival, Selector, Strategy

#: Folder of the device files, under the current folder.
DEFAULT_HARDWARE = Path("configs/hardware")
#: Name of the engine's folder beside the store, unless another one is given.
ROOT_NAME = "fleet"
#: A process that has only imported TVM already holds some 0.4 GiB; records may hold any limit above 0.
_LEAST_MEMORY_GIB = 0.5

_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]|24):([0-5]\d)")


def _as_tuple(value: Any) -> Any:
    """YAML and flags give lists where a frozen model wants tuples."""
    return tuple(value) if isinstance(value, list) else value


#: A list of names.
_Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Section(BaseModel):
    """One subject; unknown keys and wrong types are faults."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def window_secs(text: str) -> tuple[float, float]:
    """Read a part of the day, such as `22:00-06:30`.

    Returns:
        Begin and end in seconds since midnight; one that reaches over midnight ends before it begins.

    Raises:
        ValueError: The text is none.
    """
    match = _WINDOW.fullmatch(text)
    hours = [int(digits) for digits in match.groups()] if match else []
    if not hours or hours[:2] == hours[2:] or hours[2] * 60 + hours[3] > 24 * 60:
        raise ValueError(f"expected a part of the day such as '22:00-06:30', got {text!r}")
    return hours[0] * 3600.0 + hours[1] * 60.0, hours[2] * 3600.0 + hours[3] * 60.0


class PolicySection(Section):
    """When one device may be used, and how much of its time; a limit of 0 is none."""

    secs_per_hour: float = Field(default=0.0, ge=0, le=3600)
    secs_per_day: float = Field(default=0.0, ge=0, le=86_400)
    idle_only: bool = False
    """Only while nobody else uses the host."""
    windows: _Names = ()
    """Parts of the day in the host's local time, as `22:00-06:30`; empty means at any time."""

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        for window in windows:
            window_secs(window)
        return windows


class DaemonSection(Section):
    """How `fleet up` runs."""

    root: str = Field(default="runs/fleet", min_length=1)
    """Folder of its own: logs of drivers and trainings, token of the API. It is beside the store, unless
    another one is named."""
    policy: PolicySection = PolicySection()
    """The policy of every device."""
    policies: dict[str, PolicySection] = Field(default_factory=dict)
    """Other policies by device id."""
    lease_secs: float = Field(default=60.0, ge=5, le=3600)
    """A lease that no sign of life renews ends after this."""
    stall_secs: float = Field(default=300.0, ge=10, le=86_400)
    """Work without a finished candidate ends after this."""
    quarantine_secs: float = Field(default=600.0, ge=1, le=86_400)
    """A device whose agent failed five times in a row is left alone for this long."""
    refresh: bool = True
    """Whether models are trained and published."""
    arrival_samples: int = Field(default=64, ge=0, le=1_000_000)
    """Candidates that a new device measures for its first head; 0: it waits for a training."""
    return_samples: int = Field(default=64, ge=0, le=1_000_000)
    """Candidates that a known device measures for its head in another environment; fewer than 64 cannot judge
    it. 0: it waits for a training."""
    training_records: int = Field(default=512, ge=1, le=10_000_000)
    """New records of a family that ask for a training, at least."""
    training_share: float = Field(default=0.2, ge=0, le=10)
    """Share of new records among all of a family that asks for a training, at least."""
    reason_records: int = Field(default=64, ge=1, le=10_000_000)
    """New records of a device before its drift, its environment or the lack of a head ask for a training."""
    training_pause_secs: float = Field(default=300.0, ge=0, le=7 * 86_400)
    """Least time between two trainings."""
    training_deadline_secs: float = Field(default=6 * 3600.0, ge=60, le=7 * 86_400)
    """A training that takes longer is ended and reported as failed; the next waits for new records. Looks at
    fresh records are ended too."""
    upkeep_secs: float = Field(default=3600.0, ge=60, le=7 * 86_400)
    """Seconds between two rounds of upkeep of the store."""
    stop_secs: float = Field(default=60.0, ge=0, le=3600)
    """Seconds that running batches are waited for when the daemon is stopped."""
    api_host: str = "127.0.0.1"
    """Where the API listens; no host switches it off."""
    api_port: int = Field(default=8640, ge=0, le=65_535)
    """Port of the API; 0 takes any free one."""
    folders: _Names = ()
    """Folders in which requests that come over the API may read and write, besides the folder that the daemon
    runs in, and the one with its store: logs to import, files of networks, results of tunings."""
    webhook_url: str = ""
    """Address that alerts are posted to as JSON; empty posts none."""

    @field_validator("webhook_url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("expected an address such as https://chat.example/hooks/fleet, or none")
        return url


class DevicesSection(Section):
    """Which devices measure."""

    folder: str = Field(default=str(DEFAULT_HARDWARE), min_length=1)
    """Folder of the device files."""
    ids: _Names = ()
    """Device ids; empty means every device of the folder that its host can be."""


class WorkloadsSection(Section):
    """What is measured."""

    networks: _Names = Field(default=("resnet-50", "mobilenet-v2", "resnext-50", "bert-tiny"), min_length=1)
    """Networks whose programs are measured: ours by name, `.pt2` and `.onnx` files, `transformers:NAME`,
    `torchvision:NAME` (`agents.networks.network_name`)."""
    count: int = Field(default=96, ge=1, le=10_000)
    """Distinct workloads chosen from the networks. About one in seven is held out, and eight of these judge a
    model of your own: with fewer than some 60 workloads the shipped model serves for ever."""
    min_flops: float = Field(default=1e5, ge=0)
    """Least FLOPs of a workload that is collected: tiny ones are timed by their call. `fleet tune` takes all
    of a network."""
    max_flops: float = Field(default=1e9, gt=0)
    """Most FLOPs of a workload that is collected: huge ones take seconds a run."""
    samples: int = Field(default=16, ge=1, le=1_000_000)
    """Candidates measured of each workload on each device."""
    minimum: int | None = Field(default=None, ge=1, le=1_000_000)
    """Candidates that every workload gets, all random; the others go where the most network time can be won.
    None is half of `samples`."""
    exploration: float = Field(default=0.5, ge=0, le=1)
    """Share of each workload's later candidates that is random; the rest is evolved from its best ones."""
    noise_samples: int = Field(default=20, ge=0, le=10_000)
    """Candidates that the daily A/A run measures twice on each device; 0 switches it off."""

    @field_validator("networks")
    @classmethod
    def _with_absolute_paths(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(map(with_absolute_path, names))
        except NetworkRefusedError as error:
            raise ValueError(str(error)) from None


class StoreSection(Section):
    """Where the dataset is kept."""

    path: str = Field(default="runs/store", min_length=1)


class TrainingSection(Section):
    """How the cost model is trained."""

    model: ModelKind = "fleet_tlp"
    """Which is trained: ours, the published MTL-TLP, or both, of which the better one serves each device."""
    epochs: int = Field(default=24, ge=1, le=100_000)
    """Passes over the data of FleetTLP; an MTL-TLP gets the 50 published ones for each 24."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    folds: int = Field(default=5, ge=2, le=100)
    """Parts into which the workloads are split; each is held out once by `fleet eval`."""


class OnboardingSection(Section):
    """How a new device gets its head."""

    samples: int = Field(default=128, ge=0, le=1_000_000)
    """Candidates measured on the new device."""
    strategy: Strategy = "auto"
    selector: Selector = "paired"
    shipped: bool = True
    """Whether the model that comes with the program serves a device that no other model serves, and is what a
    device without source devices starts from."""


class TuningSection(Section):
    """What `fleet tune` does with whole networks."""

    rivals: Annotated[tuple[Rival, ...], BeforeValidator(_as_tuple)] = get_args(Rival)
    """Ways to run a network that its library is timed beside, where they are installed. `torch.compile` takes
    half a minute or more. The one whose output is right, torch or for an ONNX model ONNX Runtime, is timed in
    any case."""


def _protocol_fields() -> dict[str, Any]:
    """Type, default and bounds of every field of the protocol, for pydantic."""
    hints, bounds, settings = get_type_hints(Protocol), protocol_bounds(), {}
    for field in fields(Protocol):
        options: dict[str, Any] = {}
        if field.name == "memory_limit_gib":
            options = {"ge": _LEAST_MEMORY_GIB, "le": bounds[field.name].most}
        elif field.name in bounds:
            least, most, is_open = bounds[field.name]
            options = {"gt" if is_open else "ge": least, "le": most}
        settings[field.name] = (hints[field.name], Field(default=field.default, **options))
    return settings


_ProtocolFields: Any = create_model("_ProtocolFields", __base__=Section, **_protocol_fields())


class ProtocolSection(_ProtocolFields):  # type: ignore[misc]  # made of the fields of `Protocol`
    """How candidates are timed: the fields of `agents.protocol.Protocol`, with their bounds."""

    @field_validator("early_stop_ratio")
    @classmethod
    def _off_or_slower(cls, ratio: float) -> float:
        if 0 < ratio <= 1:
            raise ValueError("must be 0 (never stop early) or above 1 (times the best latency)")
        return ratio


class FleetConfig(Section):
    """All settings of a fleet, one section a subject."""

    devices: DevicesSection = DevicesSection()
    workloads: WorkloadsSection = WorkloadsSection()
    protocol: ProtocolSection = ProtocolSection()
    store: StoreSection = StoreSection()
    training: TrainingSection = TrainingSection()
    onboarding: OnboardingSection = OnboardingSection()
    tuning: TuningSection = TuningSection()
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
