"""Verbs about model versions: `fleet models list`, `show`, `diff`, `use` and `unpin`.

Registered by `fleet.cli.app`. Prints tables for people, or one JSON value with `--json`. They read and change
files only, so they work whether or not a coordinator runs; a running coordinator reads the change by itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli.options import DEFAULT_MODELS, ModelsOption, StoreOption, load_settings
from fleet.cli.output import JsonOption, print_json, value_text
from fleet.errors import FleetError
from fleet.terminal_text import print_rows, print_text

if TYPE_CHECKING:
    from fleet.models.registry import Registry
    from fleet.models.registry_file import Champion

_Reason = Annotated[str, typer.Option("--reason", help="Reason, kept in the history.")]
_Version = Annotated[str, typer.Argument(help="Name of a version, such as v000012.")]


def list_models(models: ModelsOption = DEFAULT_MODELS, as_json: JsonOption = False) -> None:
    """List the versions, and for each device the version that serves it and why.

    Example: fleet models list
    """
    from fleet.models.registry import Registry
    from fleet.models.views import list_versions

    if models != DEFAULT_MODELS and not models.exists():
        raise FleetError(f"--models {models}: there is no such folder of model versions")
    listed = list_versions(Registry(models))
    if as_json:
        print_json(listed)
        return
    rows = [
        (
            each["version"],
            "damaged" if each["damaged"] else _date(each["created_at"]),
            each["model_kind"] or "-",
            value_text(each["candidates"]),
            each["warm_start"] or "nothing",
            len(each["heads"]),
            len(each["serves"]),
        )
        for each in listed
    ]
    if not rows:
        print_text(f"no model under {models}; `fleet train` makes one")
        return
    print_rows(("version", "made", "model", "candidates", "from", "heads", "serving"), rows)
    champions = sorted(
        (champion for each in listed for champion in each["champions"]),
        key=lambda champion: str(champion["device_id"]),
    )
    print_rows(
        ("device", "served by", "since", "pinned"),
        [
            (
                each["device_id"],
                each["version"],
                _date(each["since"]),
                "no" if each["pinned_at"] is None else _date(each["pinned_at"]),
            )
            for each in champions
        ],
    )
    for champion in champions:
        device_id, version = champion["device_id"], champion["version"]
        print_text(f"{device_id}, champion {version}: {champion['reason'] or 'no reason given'}")
        if champion["retained"]:
            print_text(f"{device_id}, challenger {champion['retained']}")
    for each in listed:
        if each["damaged"]:
            print_text(each["damaged"])


def show(
    version: _Version,
    models: ModelsOption = DEFAULT_MODELS,
    card: Annotated[
        Path | None, typer.Option("--card", help="Write its model card to this file, .md or .html.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the data and settings of a version, the devices that it serves, and why.

    Example: fleet models show v000003 --card v000003.html
    """
    from fleet.models.registry import Registry
    from fleet.models.views import show_version

    described = show_version(Registry(models), version)
    if card is not None:
        from fleet.report.model_card import write_card

        write_card(described, card)
        print_text(f"card of {version}: {card}")
        return
    if as_json:
        print_json(described)
        return
    manifest = described["manifest"]
    hidden = {
        "model_kind",
        "created_at",
        "trained_workloads",
        "inherited_workloads",
        "verdicts",
        "model",
        "heads",
        "trained_heads",
        "devices",
    }
    until = {device: _date(at) for device, at in manifest.get("data_until", {}).items()}
    rows = [
        ("model", described["model_kind"]),
        ("sha256", described["sha256"]),
        ("made", _date(manifest.get("created_at"))),
    ]
    printed = {**manifest, "data_until": until} if until else manifest
    rows += [(key, value_text(value)) for key, value in printed.items() if key not in hidden]
    print_rows(("version", version), rows)
    print_rows(
        ("head", "serves", "why"),
        [
            (
                head,
                "yes" if head in described["serves"] else "no",
                manifest.get("verdicts", {}).get(head, {}).get("reason", ""),
            )
            for head in manifest["heads"]
        ],
    )
    if described["changes"]:
        print_rows(
            ("when", "what", "device", "from", "to", "why"),
            [
                (
                    _date(change["at"]),
                    change["kind"].replace("_", " "),
                    change["device"],
                    change["from"] or "nothing",
                    change["to"],
                    change["reason"],
                )
                for change in described["changes"]
            ],
        )


def diff(
    first: _Version,
    other: _Version,
    models: ModelsOption = DEFAULT_MODELS,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two versions: data, settings, heads, weights, and how each was judged.

    Example: fleet models diff v000002 v000003
    """
    from fleet.models.registry import Registry
    from fleet.models.views import diff_versions

    differences = diff_versions(Registry(models), first, other)
    if as_json:
        print_json(differences)
        return
    rows = [
        (key, value_text(before), value_text(after))
        for key, (before, after) in differences["manifest"].items()
    ]
    rows += [
        (f"records of {name}", value_text(before), value_text(after))
        for name, (before, after) in differences["heads"]["records"].items()
        if before != after
    ]
    print_rows(("", first, other), rows)
    workloads = differences["workloads"]
    if workloads is not None:
        print_text(
            f"workloads learnt from: {workloads['both']} by both, {workloads['added']} only by {other}, "
            f"{workloads['removed']} only by {first}"
        )
    print_rows(
        ("part", "moved by"),
        [
            (part, "other size" if distance is None else f"{100 * distance:.1f} %")
            for part, distance in differences["weights"].items()
        ],
    )
    reasons = [
        (version, device, verdict["reason"])
        for version, verdicts in differences["judged"].items()
        for device, verdict in verdicts.items()
    ]
    if reasons:
        print_rows(("version", "device", "when it was judged"), reasons)


def use(
    device: Annotated[str, typer.Argument(help="Id of the device.")],
    version: Annotated[
        str,
        typer.Argument(metavar="VERSION|shipped|previous", help="Version that is to serve the device."),
    ],
    pin: Annotated[
        bool,
        typer.Option(
            "--pin", help="Keep this version, whatever is trained or onboarded, until `fleet models unpin`."
        ),
    ] = False,
    reason: _Reason = "by hand",
    models: ModelsOption = DEFAULT_MODELS,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a version serve a device, whatever its scores are; other devices keep their versions.

    `shipped` is the head of the model that comes with the program, `previous` the version before the present
    one. Without `--pin`, a newer version takes its place as soon as it is judged better.

    Example: fleet models use x86-64-v4 shipped --reason "slower since the new driver"
    """
    from fleet.models.registry import Registry

    registry = Registry(models)
    if version == "shipped":
        version = _shipped_version(registry, device, store)
    elif version == "previous":
        version = registry.before(device)
    champion = registry.use(device, version, reason=reason, by_hand=True, pins=pin)
    said = f"{device} is served by {champion.version} from now on ({champion.reason})"
    if pin:
        said = f"{device} is pinned to {champion.version}; `fleet models unpin {device}` undoes this"
    _print_champion(champion, said, as_json=as_json)


def _shipped_version(registry: Registry, device: str, path: Path | None) -> str:
    """The version of the shipped model's head for a device, which is made if it is not there.

    Raises:
        FleetError: There is no store, or no head for the device.
    """
    from agents.records import DeviceId
    from fleet.models.shipped_model import ShippedHeads, is_servable
    from fleet.store.store import Store

    reader = Store.read(Path(load_settings(None, {"store.path": path}).store.path))
    heads = ShippedHeads(registry, reader)
    head = heads.head(DeviceId(device))
    if head is None:
        servable = [name for name, entry in reader.devices().items() if is_servable(entry.spec)]
        raise FleetError(
            f"no model is shipped for {device!r}; of the devices in {reader.path} one is for: "
            f"{', '.join(servable) or 'none'}"
        )
    return heads.version(head)


def unpin(
    device: Annotated[str, typer.Argument(help="Id of the device.")],
    reason: _Reason = "by hand",
    models: ModelsOption = DEFAULT_MODELS,
    as_json: JsonOption = False,
) -> None:
    """Let better versions serve a pinned device again.

    Example: fleet models unpin x86-64-v4
    """
    from fleet.models.registry import Registry

    champion = Registry(models).unpin(device, reason=reason)
    said = f"{device} is served by {champion.version}, until a version is judged better"
    _print_champion(champion, said, as_json=as_json)


def _print_champion(champion: Champion, said: str, *, as_json: bool) -> None:
    from fleet.models.registry_reader import as_json as champion_json

    if as_json:
        print_json(champion_json(champion))
    else:
        print_text(said)


def _date(secs: Any) -> str:
    if not isinstance(secs, int | float):
        return "not known"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(secs))
