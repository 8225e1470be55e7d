"""Verbs about the store as a whole: `fleet store verify`, `backup` and `restore`.

Registered by `fleet.cli.app`. They take no lock on the store that they read, so they work while a
daemon runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from fleet.cli.options import StoreSettings
from fleet.cli.output import JsonOption, print_json
from fleet.terminal_text import print_text

if TYPE_CHECKING:
    from fleet.archive.verify import Verified


def verify(
    settings: StoreSettings,
    as_json: JsonOption = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="First repair a damaged state file from its intact part and the table.",
        ),
    ] = False,
) -> None:
    """Read every file of the store, or of a backup, and report damage; exit code 1 if there is any.

    Without `--rebuild` it writes nothing, and may run while a daemon writes.

    Example: fleet store verify --store runs/store --json
    """
    from fleet.archive.backup import verify_backup
    from fleet.archive.backup_folder import is_backup
    from fleet.archive.verify import rebuild_state
    from fleet.archive.verify import verify as verify_store
    from fleet.errors import FleetError

    folder = Path(settings.store.path)
    for note in rebuild_state(folder) if rebuild else ():
        print_text(note, error=as_json)
    report = verify_backup(folder) if is_backup(folder) else verify_store(folder)
    if as_json:
        print_json(report.to_json())
    else:
        _print_verified(report)
    if report.damages:
        some = f"{report.damages} things are" if report.damages > 1 else "one thing is"
        raise FleetError(f"{folder} is damaged: {some} not as written; each line has the next step")


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup: new, empty, or an earlier one.")],
    settings: StoreSettings,
    as_json: JsonOption = False,
) -> None:
    """Copy the store as it is now; files of an earlier backup in the folder are not copied again.

    It may run while a daemon writes: it holds every record that was acknowledged before it began. The folder
    holds the whole earlier backup until the new one is complete.

    Example: fleet store backup /mnt/other-disk/fleet-backup
    """
    from fleet.archive.backup import back_up

    copied = back_up(Path(settings.store.path), folder)
    if as_json:
        print_json(asdict(copied))
        return
    print_text(
        f"{copied.records} records (table version {copied.version}) and {copied.waiting} on their way: "
        f"{copied.files} files, {_mib(copied.bytes)}, {_mib(copied.copied_bytes)} of it copied now"
    )
    print_text(f"`fleet store restore {folder} FOLDER` makes a store of it")


def restore(
    backup_folder: Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder of a backup.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the store to make: new or empty.")],
    as_json: JsonOption = False,
) -> None:
    """Make a store of a backup, comparing every sum; nothing is overwritten.

    Example: fleet store restore /mnt/other-disk/fleet-backup runs/store
    """
    from fleet.archive.backup import restore as restore_store

    restored = restore_store(backup_folder, folder)
    if as_json:
        print_json(asdict(restored))
        return
    print_text(f"{folder}: {restored.files} files, {_mib(restored.bytes)}, all sums are right")
    print_text("`fleet up` and all other verbs can use it; `fleet store verify` reads every record")


def _print_verified(report: Verified) -> None:
    for damage in report.damage:
        print_text(f"damaged: {damage.where}: {damage.what}; {damage.next_step}")
    if report.damages > len(report.damage):
        print_text(f"... and {report.damages - len(report.damage)} more")
    for note in report.notes:
        print_text(f"note: {note}")
    print_text(
        f"read {report.records} records of {report.devices} devices in {report.files} files "
        f"({_mib(report.bytes)}, table version {report.version}), {report.workloads} workloads, "
        f"{report.waiting} records on their way, in {report.secs:.1f} s"
        + ("" if report.damages else ": all is as it was written")
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
