"""What each kind of request may ask for: plain values, strictly read.

`fleet.requests.checks` reads them where a request arrives, `fleet.drivers.work` where it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agents.networks.network_name import NetworkRefusedError, read_network_name, with_absolute_path
from fleet.config.sections import Selector, Strategy
from fleet.core.request_words import RequestKind
from fleet.errors import FleetError


def _network(text: str) -> str:
    try:
        return with_absolute_path(text)
    except NetworkRefusedError as error:
        raise ValueError(str(error)) from None


_Name = Annotated[str, Field(min_length=1, max_length=200)]
#: One of ours, a file on the coordinator's host, or an architecture (`agents.networks.network_name`).
_Network = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_network)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Number = Annotated[int, Field(ge=0, le=1_000_000)]
_Seed = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    #: Runs inside of the command that asked for it, and ends with it.
    embedded: bool = False
    seed: _Seed | None = None


class CollectionArguments(_Arguments):
    """A collection; what is left out is as in the settings."""

    #: Empty: every device of the fleet.
    devices: list[_Name] = []
    networks: list[_Network] | None = None
    #: Workloads, and candidates of each.
    count: _Count | None = None
    samples: _Count | None = None
    #: Candidates of each device that are measured a second time.
    remeasure: _Number = 0
    #: Candidates of an A/A run, which is all that is done then.
    noise: _Count | None = None
    #: Measure the fingerprints of the devices, and no more.
    fingerprint: bool = False


class OnboardingArguments(_Arguments):
    """A head for a device."""

    device: _Name
    #: At most: source devices may have measured fewer candidates.
    samples: _Number | None = None
    #: Unix seconds at which the device drifted: what it measured before is a source, no sample. Where its
    #: reference programs run as before, its head stays.
    since: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    strategy: Strategy | None = None
    selector: Selector | None = None
    epochs: _Count | None = None


class TuningArguments(_Arguments):
    """A search on a device."""

    device: _Name
    trials: _Count
    networks: list[_Network] | None = None
    workloads: list[_Name] = []
    #: Folder for the database, on the coordinator's host; None for its usual place.
    out: Annotated[str, Field(min_length=1, max_length=4000)] | None = None


class ImportArguments(_Arguments):
    """Logs of other tools, on the coordinator's host."""

    #: Absolute paths of files and folders.
    paths: Annotated[list[Annotated[str, Field(pattern="^/", max_length=4000)]], Field(min_length=1)]
    #: Device that measured them; it need not be one of the fleet.
    device: _Name
    dialect: _Name = "auto"
    #: Network of all files; empty: told by the layout of the folders.
    network: Annotated[str, Field(max_length=200)] = ""
    #: Read files again that an earlier import had read to their end.
    again: bool = False


class EvaluationArguments(_Arguments):
    """How well models rank candidates that they never saw (`fleet eval`)."""

    #: Heads to judge; empty: all that the store has records of.
    devices: list[_Name] = []
    #: A version of the coordinator's models, or `latest`: it is judged on candidates measured after it was
    #: trained. None trains on parts of the store, and judges on the rest.
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = None
    #: What is new about the candidates that are judged (`transfer.data.splits.SplitKind`).
    split: Literal["within-workload", "by-workload", "by-network", "by-device"] = "by-workload"
    #: Runs with other splits and initial weights.
    seeds: Annotated[int, Field(ge=1, le=100)] = 3
    epochs: _Count | None = None
    folds: Annotated[int, Field(ge=2, le=100)] | None = None


class RetirementArguments(_Arguments):
    """A device that is to leave the fleet."""

    device: _Name


Arguments = (
    CollectionArguments
    | OnboardingArguments
    | TuningArguments
    | ImportArguments
    | EvaluationArguments
    | RetirementArguments
)

_KINDS: Final[Mapping[RequestKind, type[Arguments]]] = {
    RequestKind.COLLECTION: CollectionArguments,
    RequestKind.ONBOARDING: OnboardingArguments,
    RequestKind.TUNING: TuningArguments,
    RequestKind.IMPORT: ImportArguments,
    RequestKind.EVALUATION: EvaluationArguments,
    RequestKind.RETIREMENT: RetirementArguments,
}


class ArgumentsError(FleetError):
    """Arguments that a request of this kind does not take."""


def read_arguments(kind: RequestKind, values: Mapping[str, Any]) -> Arguments:
    """Read the arguments of a request of any kind but a training.

    Raises:
        ArgumentsError: One is missing, unknown or of the wrong kind; the message names it.
    """
    try:
        return _KINDS[kind].model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "arguments"
        got = "" if first["type"] == "missing" else f", got {first['input']!r:.80}"
        raise ArgumentsError(f"{kind}: {where}: {first['msg'][:1].lower()}{first['msg'][1:]}{got}") from None


def devices_of(arguments: Arguments) -> list[str]:
    """The devices that a request is about; none where it is for all, or has to do with no device here."""
    match arguments:
        case CollectionArguments(devices=devices) | EvaluationArguments(devices=devices):
            return devices
        case ImportArguments():
            return []
        case _:
            return [arguments.device]


def paths_of(arguments: Arguments) -> list[Path]:
    """The files and folders of the coordinator's host that a request reads or writes."""
    match arguments:
        case ImportArguments(paths=paths):
            return [Path(path) for path in paths]
        case TuningArguments(networks=networks, out=out):
            return [*_files(networks), *([Path(out)] if out else [])]
        case CollectionArguments(networks=networks):
            return _files(networks)
        case _:
            return []


def _files(networks: Iterable[str] | None) -> list[Path]:
    paths = (read_network_name(network).path for network in networks or ())
    return [path for path in paths if path is not None]
