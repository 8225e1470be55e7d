"""What `import fleet` offers of measuring: collections, onboardings, searches.

`fleet/__init__.py` loads it at the first use, and the verbs of the command line call it. Which engine does
the work is for `fleet.public_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.networks.network_name import networks_here
from fleet.core.request_words import RequestKind
from fleet.public_engine import EngineOptions, do_request

_DEFAULT = EngineOptions()


def collect(
    devices: Sequence[str] | None = None,
    *,
    networks: Sequence[str] | None = None,
    workloads: int | None = None,
    samples: int | None = None,
    remeasure: int = 0,
    noise: int | None = None,
    seed: int | None = None,
    options: EngineOptions = _DEFAULT,
) -> dict[str, Any] | None:
    """Measure candidates, the same on each device, into the store. What it holds is not measured again.

    Args:
        devices: Device ids; all that fit this host if None.
        networks: Whose workloads (`workloads.networks`): names of ours, files, architectures.
        workloads: How many workloads (`workloads.count`).
        samples: Candidates of each workload (`workloads.samples`).
        remeasure: Candidates of each device to measure a second time.
        noise: Only measure so many known candidates twice (A/A run).
        seed: Of the choice of candidates.
        options: Store, settings, engine.

    Returns:
        `{"spent": ...}`: seconds of each device by part; None where the daemon was left alone with it.

    Raises:
        FleetError: It cannot be done; what was measured is stored.
    """
    networks = networks_here(networks)
    settings = options.read(
        {
            "workloads.networks": tuple(networks) if networks else None,
            "devices.ids": tuple(devices) if devices else None,
            "workloads.count": workloads,
            "workloads.samples": samples,
            "training.seed": seed,
        }
    )
    asked = {
        "devices": list(devices) if devices else None,
        "networks": networks,
        "count": workloads,
        "samples": samples,
        "remeasure": remeasure or None,
        "noise": noise,
        "seed": seed,
    }
    return do_request(settings, RequestKind.COLLECTION, asked, options)


def fingerprint(
    devices: Sequence[str] | None = None, *, options: EngineOptions = _DEFAULT
) -> dict[str, Any] | None:
    """Measure the reference programs of onboardings, which tell how alike devices are.

    Args:
        devices: Device ids; all that fit this host if None.
        options: Store, settings, engine.

    Returns:
        `{"ran": ...}`: programs that ran, by device; None where the daemon was left alone with it.

    Raises:
        FleetError: It cannot be done; what was measured is stored.
    """
    settings = options.read({"devices.ids": tuple(devices) if devices else None})
    asked = {"devices": list(devices) if devices else None, "fingerprint": True}
    return do_request(settings, RequestKind.COLLECTION, asked, options)


def onboard(
    device: str,
    *,
    samples: int | None = None,
    strategy: str | None = None,
    selector: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    options: EngineOptions = _DEFAULT,
) -> dict[str, Any] | None:
    """Give a new device its head: measure a few candidates that source devices know, adapt, judge.

    Args:
        device: Its id; its device file must exist.
        samples: Candidates to measure, earlier ones included (`onboarding.samples`).
        strategy: `auto`, or one strategy by name (`onboarding.strategy`).
        selector: How candidates are chosen (`onboarding.selector`).
        epochs: Passes over the data (`training.epochs`).
        seed: Of everything random.
        options: Store, models, settings, engine.

    Returns:
        What came of it: `served_by`, `taken` (the strategy), `seconds` by part, and what to expect; None
        where the daemon was left alone with it.

    Raises:
        FleetError: There is no model of the family, or it cannot be done; what was measured is stored.
    """
    settings = options.read(
        {
            "onboarding.samples": samples,
            "onboarding.strategy": strategy,
            "onboarding.selector": selector,
            "training.epochs": epochs,
            "training.seed": seed,
        }
    )
    asked = {
        "device": device,
        "samples": samples,
        "strategy": strategy,
        "selector": selector,
        "epochs": epochs,
        "seed": seed,
    }
    return do_request(settings.with_devices(device), RequestKind.ONBOARDING, asked, options)


def tune(
    device: str,
    *,
    networks: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    trials: int = 256,
    out: Path | str | None = None,
    seed: int | None = None,
    options: EngineOptions = _DEFAULT,
) -> dict[str, Any] | None:
    """Search fast programs of networks on one device, and write a database that TVM applies.

    Args:
        device: Its id.
        networks: Names of ours, `.pt2` or `.onnx` files, `transformers:NAME`, `torchvision:NAME`
            (`workloads.networks`).
        workloads: Only these of the networks' workloads; all if None.
        trials: Candidates to measure.
        out: Folder of the database, the libraries and the report; `runs/tuned/DEVICE` if None.
        seed: Of everything random.
        options: Store, models, settings, engine.

    Returns:
        What came of it: seconds of each network before and after, trials, the folder; None where the daemon
        was left alone with it.

    Raises:
        FleetError: It cannot be done; what was measured is stored.
    """
    networks = networks_here(networks)
    settings = options.read(
        {"workloads.networks": tuple(networks) if networks else None, "training.seed": seed}
    )
    asked = {
        "device": device,
        "trials": trials,
        "networks": networks,
        "workloads": list(workloads) if workloads else None,
        "out": str(Path(out or Path("runs/tuned") / device).absolute()),
        "seed": seed,
    }
    return do_request(settings.with_devices(device), RequestKind.TUNING, asked, options)
