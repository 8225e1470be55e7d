"""Publish the records of a store: one Parquet file, a data card, and their sums."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agents.records import Descriptor, DeviceId, DeviceKind, Outcome, canonical_json, content_hash
from agents.trust import is_live
from fleet.config.yaml_files import nearest
from fleet.datasets.admission import verify
from fleet.datasets.claims import NAME
from fleet.datasets.data_card import DatasetAbout, card_text, data_card
from fleet.datasets.dataset_files import (
    CARD,
    ID_PARTS,
    README,
    RECORDS,
    read_published,
    with_record_ids,
    write_sums,
)
from fleet.errors import FleetError
from fleet.interchange.export_files import whole_folder
from fleet.interchange.export_parquet import write_parquet
from fleet.interchange.export_source import Source, json_object
from fleet.store.catalog import DeviceEntry
from fleet.store.reader import StoreReader

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
        super().__init__(reader, entry.spec.device_id, keeps_imported=False)
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
        for batch in super().batches(tuple(dict.fromkeys((*columns, "outcome", *parts)))):
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

    @cached_property
    def _environments(self) -> dict[str, str]:
        """Other ids for the environments of a device behind a wire.

        Theirs are hashes of its address, by which a guess of it can be checked. These go by the first
        measurement of each, so that a later edition has the same.
        """
        first: dict[str, float] = {}
        for batch in super().batches(("environment_id", "measured_at")):
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
