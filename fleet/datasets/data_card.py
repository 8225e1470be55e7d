"""The data card of a published dataset: what it holds, how it was measured, how far to trust it.

It is JSON for programs and, by a template, Markdown for people.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import (
    IMPORTED,
    NOISE,
    Descriptor,
    DeviceId,
    DeviceKind,
    Outcome,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
    is_live,
)
from fleet.config.yaml_files import nearest
from fleet.datasets.admission import verify
from fleet.datasets.claims import NAME
from fleet.datasets.dataset_files import (
    CARD,
    FORMAT,
    FORMAT_KEY,
    ID_PARTS,
    README,
    RECORDS,
    read_published,
    with_record_ids,
    write_sums,
)
from fleet.errors import FleetError
from fleet.interchange.export_parquet import write_parquet
from fleet.interchange.export_source import Source, json_object, whole_folder
from fleet.json_types import Json, JsonDict
from fleet.report.status import trust
from fleet.store.catalog import DeviceEntry
from fleet.store.noise import READING_COLUMNS
from fleet.store.reader import StoreReader

#: Columns whose values are counted.
_COUNTED = ("outcome", "origin", "protocol", "environment_id", "workload_id")
#: From this share on, records of drifting windows are named among the faults.
_MUCH_SUSPECT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAbout:
    """What the publisher says of a dataset."""

    name: str
    #: Some sentences for people.
    about: str = ""
    #: The command that measured it.
    made_by: str = ""
    license: str = "Apache-2.0"
    #: What a user must know of it, one sentence each.
    faults: tuple[str, ...] = ()


def data_card(about: DatasetAbout, sources: Sequence[Source], now_secs: float) -> JsonDict:
    """Count what a dataset holds.

    Returns:
        JSON-ready: `name`, `about`, `license`, `made_by`, `created_at`, `records`, `candidates`, `workloads`,
        `table_version`, `devices` (by id: records by outcome and origin, suspect share, noise floor of the
        last A/A run, environments, target, processor), `operators`, `networks`, `protocols`, `faults`.
    """
    protocols: Counter[str] = Counter()
    used: Counter[str] = Counter()
    candidates: list[pa.Array] = []
    devices: JsonDict = {}
    for source in sources:
        counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        devices[str(source.device_id)] = _facts(source, counts, candidates)
        protocols.update(counts["protocol"])
        used.update(counts["workload_id"])
    workloads_by_id = sources[0].workloads
    workloads = [
        workloads_by_id[workload_id]
        for workload_id in map(WorkloadId, sorted(used))
        if workload_id in workloads_by_id
    ]
    operators: Counter[str] = Counter()
    for name, count in used.items():
        workload = workloads_by_id.get(WorkloadId(name))
        operators["not known" if workload is None else workload.operator] += count
    distinct = pc.unique(pa.chunked_array(candidates, pa.string()))
    return {
        FORMAT_KEY: FORMAT,
        "name": about.name,
        "about": about.about,
        "license": about.license,
        "made_by": about.made_by,
        "published_with": f"tensor-fleet {metadata.version('tensor-fleet')}",
        "created_at": datetime.fromtimestamp(now_secs, UTC).isoformat(timespec="seconds"),
        "table_version": sources[0].reader.version,
        "records": sum(device["records"] for device in devices.values()),
        "candidates": len(distinct),
        "workloads": len(workloads),
        "devices": devices,
        "operators": _operators(workloads, operators),
        "networks": dict(sorted(Counter(n for workload in workloads for n, _ in workload.networks).items())),
        "protocols": [
            {"records": count, "protocol": json.loads(text)} for text, count in protocols.most_common()
        ],
        "faults": [*about.faults, *_faults(devices)],
    }


def card_text(card: Json, size_bytes: int) -> str:
    """The card that `data_card` made as Markdown, with the size of the file of records."""
    from fleet.report.model_card import card_environment

    environment = card_environment()
    environment.filters |= {"json": canonical_json, "counts": _counts, "share": _share}
    return environment.get_template("data_card.md").render(card=card, mib=f"{size_bytes / 2**20:.1f}")


def _facts(source: Source, counts: Mapping[str, Counter[str]], candidates: list[pa.Array]) -> JsonDict:
    """What the card says of a device, by one pass over its rows.

    Args:
        source: The device.
        counts: Get its records by the values of `_COUNTED`.
        candidates: Get their ids, in pieces; one may stand in several.
    """
    first, last = float("inf"), float("-inf")

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal first, last
        for batch in source.batches(tuple(dict.fromkeys((*READING_COLUMNS, *_COUNTED)))):
            for name, counter in counts.items():
                value_counts = pc.value_counts(batch.column(name)).to_pylist()
                counter.update({entry["values"]: entry["counts"] for entry in value_counts})
            candidates.append(pc.unique(batch.column("candidate_id")))
            times = pc.min_max(batch.column("measured_at")).as_py()
            first, last = min(first, times["min"]), max(last, times["max"])
            yield batch

    quality = trust(source.device_id, batches())
    spec, descriptor = source.spec, source.descriptor
    return {
        "records": counts["outcome"].total(),
        "outcomes": dict(sorted(counts["outcome"].items())),
        "origins": dict(sorted(counts["origin"].items())),
        **{
            name: quality[name] for name in ("candidates", "quarantined", "suspect", "suspect_share", "noise")
        },
        "environments": len(counts["environment_id"]),
        "first_at": first,
        "last_at": last,
        "family": None if spec is None else str(spec.family),
        "target": None if spec is None else spec.target,
        "threads": None if spec is None else spec.threads,
        "host": None if descriptor is None else descriptor.host,
        "processor": None if descriptor is None else descriptor.cpu_model,
        "kernel": None if descriptor is None else descriptor.kernel,
        "software": {} if descriptor is None else dict(descriptor.versions),
    }


def _operators(workloads: Sequence[Workload], records: Mapping[str, int]) -> dict[str, dict[str, int]]:
    counts = Counter(workload.operator for workload in workloads)
    return {
        operator: {"workloads": counts.get(operator, 0), "records": records[operator]}
        for operator in sorted(records, key=lambda operator: (-records[operator], operator))
    }


def _faults(devices: Mapping[str, Json]) -> list[str]:
    """What the numbers themselves warn of."""
    faults = []
    for name, card in devices.items():
        if card["noise"] is None:
            why = "drifted in its last A/A run" if card["origins"].get(NOISE) else "has no A/A run"
            faults.append(f"{name} {why}: how far its numbers repeat is not known.")
        if (card["suspect_share"] or 0.0) >= _MUCH_SUSPECT:
            faults.append(
                f"{card['suspect_share']:.1%} of the records of {name} are suspect: it drifted meanwhile."
            )
        if card["environments"] > 1:
            faults.append(
                f"{name} was measured in {card['environments']} environments; compare records of one only."
            )
    return faults


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in values.items()) or "none"


# Publish the records of a store: one Parquet file, a data card, and their sums.

#: What the environment of a device behind a wire says beside what it measures with.
_ADDRESS_KEYS: Final = frozenset(("tracker", "key"))
#: Errors of lost devices speak of addresses, and of all that a tracker lists.
_LOST: Final = "lost; the words of whoever lost it are not published"
#: Folders, which have names of people in them, and addresses.
_PLACE: Final = re.compile(
    r"(?:(?<![\w.])|(?<=-[IL]))(?:/+[^\s/:;,'\"()]+){2,}"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d+)?"
    r"|(?<=server )[^\s:]+:\d+|(?<=tracker )[^\s:]+:\d+|(?<=key )'[^']*'"
)


class _PublishedSource(Source):
    """The records of a device that we measured, without the names of hosts, addresses and folders."""

    def __init__(self, reader: StoreReader, entry: DeviceEntry, hosts: Mapping[str, str]) -> None:
        super().__init__(reader, entry.spec.device_id)
        descriptor = entry.descriptor
        words = "|".join(re.escape(host) for host in hosts if host)
        self._host = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None
        self._hosts = hosts
        self.entry = replace(
            entry,
            spec=msgspec.structs.replace(entry.spec, tracker="", key=""),
            descriptor=None if descriptor is None else _nameless(descriptor, hosts[descriptor.host]),
        )
        self._is_wired = entry.spec.kind is DeviceKind.RPC

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the device; ids, environments and errors tell nothing of where it is."""
        parts = ID_PARTS if self._is_wired else ()
        for batch in self._measured((*columns, "outcome", *parts)):
            if self._is_wired:
                batch = _rewritten(batch, "environment_id", self._environments.__getitem__)
                if "record_id" in columns:
                    batch = with_record_ids(self.device_id, batch)
            if "environment" in columns:
                batch = _rewritten(batch, "environment", _without_address)
            if "error" in columns:
                batch = _rewritten(batch, "error", self._without_places)
                is_lost = pc.equal(batch.column("outcome"), Outcome.LOST.value)
                place = batch.schema.get_field_index("error")
                errors = pc.if_else(is_lost, _LOST, batch.column(place))
                batch = batch.set_column(place, batch.schema.field(place), errors)
            yield batch.select(list(columns))

    def _measured(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows that came with no log."""
        columns = list(dict.fromkeys(columns))
        for batch in super().batches(list(dict.fromkeys((*columns, "origin")))):
            ours = batch.filter(pc.not_equal(batch.column("origin"), IMPORTED))
            if ours.num_rows:
                yield ours.select(columns)

    @cached_property
    def _environments(self) -> dict[str, str]:
        """Other ids for the environments of a device behind a wire.

        Theirs are hashes of its address, by which a guess of it can be checked. These go by the first
        measurement of each, so that a later edition has the same.
        """
        first: dict[str, float] = {}
        for batch in self._measured(("environment_id", "measured_at")):
            for environment_id, at in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                first[environment_id] = min(at, first.get(environment_id, at))
        order = sorted(first, key=lambda environment_id: (first[environment_id], environment_id))
        return {
            environment_id: content_hash(self.device_id, str(place))
            for place, environment_id in enumerate(order)
        }

    def _without_places(self, text: str) -> str:
        text = _PLACE.sub("(place)", text)
        return self._host.sub(lambda match: self._hosts[match[0]], text) if self._host else text


def _nameless(descriptor: Descriptor, host: str) -> Descriptor:
    """A descriptor with another name of its host, and without the numbers that name single cards."""
    cuda, rocm = (
        tuple(tuple(pair for pair in card if pair[0] != "uuid") for card in cards)
        for cards in (descriptor.cuda_devices, descriptor.rocm_devices)
    )
    return msgspec.structs.replace(descriptor, host=host, cuda_devices=cuda, rocm_devices=rocm)


def _rewritten(batch: pa.RecordBatch, name: str, change: Callable[[str], str]) -> pa.RecordBatch:
    """The rows with other texts in a column; each text is changed once."""
    place = batch.schema.get_field_index(name)
    texts = batch.column(place).dictionary_encode()
    changed = pa.array([change(entry) for entry in texts.dictionary.to_pylist()], pa.string())
    return batch.set_column(place, batch.schema.field(place), changed.take(texts.indices))


def _without_address(text: str) -> str:
    value = json_object(text)
    if not value.keys() & _ADDRESS_KEYS:
        return text
    return canonical_json({name: entry for name, entry in value.items() if name not in _ADDRESS_KEYS})


def publish(
    reader: StoreReader,
    folder: Path,
    about: DatasetAbout,
    devices: Sequence[str] = (),
) -> dict[str, Any]:
    """Publish what the devices of a store have measured.

    The folder is there as a whole or not at all, and was read back and checked before it has its name.

    Args:
        reader: The store.
        folder: Where it goes: missing or empty.
        about: What the publisher says of it.
        devices: Device ids; all that measured if empty.

    Returns:
        `folder`, `sha256` (of the file of sums, which stands for all), `bytes` of the records, and `card`.

    Raises:
        FleetError: A wrong name, a device that did not measure, nothing to publish, or the folder is taken.
        StoreError: The store is damaged, or the disk failed.
    """
    if not NAME.fullmatch(about.name):
        raise FleetError(
            f"dataset name {about.name!r} is not allowed: use up to 32 small letters, digits and '-', "
            "starting with a letter or digit; it stands before the ids of its devices"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise FleetError(f"{folder} is not empty, and no dataset is overwritten: name a new folder")
    sources = _sources(reader, devices)
    with whole_folder(folder, replace=False) as partial:
        if not sources or not write_parquet(partial / RECORDS, sources, is_small=True):
            raise FleetError(f"nothing to publish in {reader.path}: all of its records came with logs")
        size = (partial / RECORDS).stat().st_size
        card = data_card(about, sources, time.time())
        (partial / CARD).write_text(json.dumps(card, indent=1) + "\n")
        (partial / README).write_text(card_text(card, size))
        sha256 = write_sums(partial)
        verify(read_published(partial, sha256))
    return {"folder": str(folder), "sha256": sha256, "bytes": size, "card": card}


def _sources(reader: StoreReader, devices: Sequence[str]) -> list[Source]:
    entries, present = reader.devices(), reader.counts()
    ours = [device_id for device_id in present if device_id in entries and is_live(entries[device_id].spec)]
    for name in devices:
        if name not in present:
            raise FleetError(f"device {name!r} has no records in {reader.path}{nearest(name, list(present))}")
        if name not in ours:
            raise _not_measured(name)
    chosen = sorted({DeviceId(name) for name in devices} or ours)
    if not chosen:
        raise FleetError(
            f"nothing to publish in {reader.path}: no device of it measured; `fleet collect` does"
        )
    hosts = dict.fromkeys(
        descriptor.host for device_id in chosen if (descriptor := entries[device_id].descriptor) is not None
    )
    names = {host: f"host-{place}" for place, host in enumerate(hosts, 1)}
    sources = [_PublishedSource(reader, entries[device_id], names) for device_id in chosen]
    # Logs may have been imported under a device that could measure and never did.
    measured: list[Source] = [
        source for source in sources if next(source.batches(("origin",)), None) is not None
    ]
    for name in sorted(set(devices) - {source.device_id for source in measured}):
        raise _not_measured(name)
    return measured


def _not_measured(name: str) -> FleetError:
    return FleetError(
        f"device {name} has not measured its records: they are replayed or others'; publish devices that "
        "measured"
    )
