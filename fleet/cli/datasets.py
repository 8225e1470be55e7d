"""Verbs about datasets: `fleet datasets` lists stores; `publish`, `verify` and `open` exchange them.

Registered by `fleet.cli.app`. Nothing heavy is loaded before a verb runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.cli.help_text import HelpGroup
from fleet.cli.options import KnownDevicesOption, StoreOption, load_settings, say_places
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json, short_moment
from fleet.terminal_text import print_rows, print_text, visible

Sha256Option = Annotated[
    str, typer.Option("--sha256", help="Expected SHA-256 of the dataset, as `publish` printed it.")
]


class ListGroup(HelpGroup):
    """`fleet datasets [FOLDER]` lists, as it did before there were other verbs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` first if no verb is given."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def list_(
    folder: Annotated[Path, typer.Argument(help="Folder to search, three levels deep.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the stores below a folder, with their numbers of records, devices and workloads.

    Example: fleet datasets list /mnt/lab
    """
    from fleet.errors import StoreError
    from fleet.store.store import Store

    stores: list[dict[str, Any]] = []
    for log in sorted(
        log_path for depth in range(4) for log_path in folder.glob("*/" * depth + "records/_delta_log")
    ):
        path = log.parent.parent
        try:
            reader = Store.read(path)
            counts = reader.counts()
            workloads = len(reader.workloads())
        except StoreError as error:
            print_text(f"left out: {error}", error=True)
            continue
        stores.append(
            {
                "store": path,
                "records": sum(device_counts.records for device_counts in counts.values()),
                "devices": sorted(counts),
                "workloads": workloads,
                "table_version": reader.version,
                "last_at": max((device_counts.last_at for device_counts in counts.values()), default=None),
            }
        )
    if as_json:
        print_json(stores)
        return
    rows = [
        (
            store["store"],
            f"{store['records']:,}",
            len(store["devices"]),
            store["workloads"],
            short_moment(store["last_at"]),
        )
        for store in stores
    ]
    print_rows(("store", "records", "devices", "workloads", "last"), rows)
    if not stores:
        print_text(f"no store below {folder.absolute()}")


def publish(
    store: Annotated[Path, typer.Argument(help="Store whose measured records are published.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write: missing or empty.")],
    name: Annotated[
        str, typer.Option("--name", help="Name of the dataset (default: of the folder); part of device ids.")
    ] = "",
    about: Annotated[str, typer.Option("--about", help="Description in a few sentences.")] = "",
    made_by: Annotated[str, typer.Option("--made-by", help="The command that measured it.")] = "",
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="A known fault; may be given again.")
    ] = None,
    license_: Annotated[str, typer.Option("--license", help="SPDX identifier.")] = "Apache-2.0",
    device: KnownDevicesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a store: records, workloads and devices as compressed Parquet, a data card, and SHA-256 sums.

    Records that came with logs, with other datasets or from replay devices are left out.

    Example: fleet datasets publish runs/store out/open-cpu --made-by "fleet collect --network corpus"
    """
    from fleet.datasets.data_card import DatasetAbout
    from fleet.datasets.data_card import publish as publish_dataset
    from fleet.store.store import Store

    dataset_about = DatasetAbout(
        name=name or folder.absolute().name,
        about=about,
        made_by=made_by,
        license=license_,
        faults=tuple(fault or ()),
    )
    publication = publish_dataset(Store.read(store), folder, dataset_about, tuple(device or ()))
    if as_json:
        print_json(publication)
        return
    _print_card(publication["card"])
    print_text(
        f"{folder}: {publication['bytes'] / 2**20:.1f} MiB of records, SHA-256 {publication['sha256']}"
    )


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of a published dataset.")],
    sha256: Sha256Option = "",
    as_json: JsonOption = False,
) -> None:
    """Compare the sums of a published dataset and check every record; exit code 1 if anything is wrong.

    Example: fleet datasets verify data/open-cpu
    """
    from fleet.datasets.admission import verify_apart

    published, records = verify_apart(folder, sha256)
    if as_json:
        print_json({"folder": folder, "sha256": published.sha256, "records": records, "card": published.card})
        return
    _print_card(published.card)
    print_text(f"{folder}: whole, {records:,} records, SHA-256 {published.sha256}")


def open_(
    folder: Annotated[Path, typer.Argument(help="Folder of a published dataset.")],
    store: StoreOption = None,
    sha256: Sha256Option = "",
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a published dataset into a store, which every verb reads; a second time adds nothing.

    Its devices are named after it (open-cpu.x86-64-v3) and never measure. Its programs are not run.

    Example: fleet datasets open data/open-cpu --store runs/store
    """
    from dataclasses import asdict

    from fleet.datasets.admission import open_dataset
    from fleet.store.store import Store, records_or_nothing

    settings = load_settings(config, {"store.path": store}, changes)
    say_places(settings, config, store)
    path = Path(settings.store.path)
    with records_or_nothing(path), Store.open(path) as opened:
        admission = open_dataset(folder, opened, sha256)
    if as_json:
        print_json(asdict(admission))
        return
    print_text(
        f"{admission.name}: {admission.appended:,} new records, {admission.known:,} known, "
        f"{admission.workloads_new:,} new workloads; devices {', '.join(admission.devices)}"
    )
    print_text(f"store {path}, table version {admission.table_version}")


def _print_card(card: Mapping[str, Any]) -> None:
    rows = [
        (
            name,
            f"{device['records']:,}",
            f"{device['outcomes'].get('ok', 0):,}",
            "-" if device["suspect_share"] is None else f"{device['suspect_share']:.1%}",
            "-" if device["noise"] is None else f"{device['noise']['median_change']:.1%}",
            device["processor"],
        )
        for name, device in card["devices"].items()
    ]
    print_rows(("device", "records", "ok", "suspect", "noise", "processor"), rows)
    print_text(
        f"{card['name']}: {card['records']:,} records, {card['candidates']:,} candidates, "
        f"{card['workloads']:,} workloads, {len(card['operators'])} operators; {visible(card['license'])}"
    )
    for fault in card["faults"]:
        print_text(visible(fault))
