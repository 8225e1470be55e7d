"""What the driver of a request does: reads its arguments, and calls the module that does the work.

The same for a driver in a process of its own (`process.py`) and for one inside of the command that asked for
it (`fleet.daemon.embedded`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agents.records import DeviceId, DeviceSpec
from fleet.collection.settings import Display
from fleet.config.settings import FleetConfig
from fleet.core.request_words import RequestKind
from fleet.requests.arguments import (
    Arguments,
    CollectionArguments,
    EvaluationArguments,
    ImportArguments,
    OnboardingArguments,
    RetirementArguments,
    TuningArguments,
    devices_of,
    read_arguments,
)
from fleet.requests.session import EngineSession


class Work(BaseModel):
    """One request as its driver sees it; `launch.py` hands it to a process as JSON."""

    model_config = ConfigDict(frozen=True)

    kind: RequestKind
    arguments: dict[str, Any]
    #: Minutes that it may take; None for no limit.
    minutes: float | None
    #: Of the coordinator, which the arguments go on top of.
    settings: FleetConfig
    #: Folder of the model versions.
    models: Path
    #: Logical CPUs that its process may use; all where empty.
    cores: list[int] = []
    #: Of the driver's own; None inside of a command.
    folder: Path | None = None


def perform(work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
    """Do what a request asks for.

    Returns:
        What came of it, JSON-ready.

    Raises:
        FleetError, AgentError, TransferError: It cannot be done; what was measured is stored.
    """
    arguments = read_arguments(work.kind, work.arguments)
    if isinstance(arguments, ImportArguments):
        return _import(work, arguments, session, display)
    settings = _with_arguments(work.settings, arguments)
    if isinstance(arguments, EvaluationArguments):
        session.store()  # what waits for the table is in it after this
        return judge_heads(settings, arguments, work.models, display)
    names = [DeviceId(one) for one in devices_of(arguments)]
    if isinstance(arguments, OnboardingArguments) and arguments.since is None:
        from fleet.onboarding.day_zero import check_onboarding

        check_onboarding(settings, names[0], work.models)
    display.phase("wait", 0)
    session.ready(names)
    known = session.store().devices()
    specs: dict[DeviceId, DeviceSpec] = {one: known[one].spec for one in names}
    match arguments:
        case CollectionArguments(fingerprint=True):
            from fleet.onboarding.fingerprint import fingerprint_devices

            return fingerprint_devices(session, settings, specs, display)
        case CollectionArguments():
            from fleet.collection.jobs import collect_records

            return collect_records(
                session,
                settings,
                specs,
                display,
                remeasure=arguments.remeasure,
                noise=arguments.noise,
                minutes=work.minutes,
            )
        case OnboardingArguments():
            from fleet.onboarding.onboarding import onboard_device

            if arguments.since is not None:
                session.part(names[0], arguments.since)
            return onboard_device(
                session,
                settings,
                specs[names[0]],
                work.models,
                display,
                has_drifted=arguments.since is not None,
                waits=work.folder is None,
            )
        case TuningArguments():
            from fleet.tuning.tuning import TuneOptions, tune_device

            options = TuneOptions(
                trials=arguments.trials,
                workloads=tuple(arguments.workloads),
                models=work.models,
                out=Path(arguments.out or f"runs/tuned/{arguments.device}"),
                minutes=work.minutes,
            )
            return tune_device(session, settings, specs[names[0]], options, display)
        case RetirementArguments():
            raise AssertionError("a retirement has no driver")


def judge_heads(
    settings: FleetConfig, arguments: EvaluationArguments, models: Path, display: Display
) -> dict[str, Any]:
    """Do what `fleet eval` asks for; it reads the store as it is, and needs no engine.

    Returns:
        `fleet.models.evaluation.Evaluation.as_json`.

    Raises:
        FleetError: There is no such version or head.
        TransferError: There is too little to learn from or to judge.
    """
    from fleet.models.evaluation import evaluate_model, evaluate_store
    from transfer.evaluate.compare import Finished

    def told(finished: Finished) -> None:
        if finished.done == 1:
            display.phase("learn", finished.total)
        display.step(1, f"{finished.ranker}, {finished.split}")

    with display.live():
        if arguments.version is not None:
            found = evaluate_model(settings, models, arguments.version, arguments.devices, told)
        else:
            found = evaluate_store(
                settings,
                arguments.devices,
                split=arguments.split,
                seeds=arguments.seeds,
                on_progress=told,
            )
        display.finish()
    return found.as_json()


def _import(
    work: Work, arguments: ImportArguments, session: EngineSession, display: Display
) -> dict[str, Any]:
    from fleet.collection.progress import kilobytes
    from fleet.interchange.import_logs import ImportRequest, import_logs
    from fleet.requests.store_proxy import StoreProxy

    assert work.folder is not None
    request = ImportRequest(
        paths=tuple(map(Path, arguments.paths)),
        device_id=arguments.device,
        dialect=arguments.dialect,
        network=arguments.network,
        devices_folder=Path(work.settings.devices.folder),
        again=arguments.again,
    )
    store = StoreProxy(session, work.folder)
    report = import_logs(store, request, kilobytes(display))
    display.finish()
    store.finish()
    return report.to_json()


def _with_arguments(settings: FleetConfig, arguments: Arguments) -> FleetConfig:
    """The settings with what a request says beside them."""
    values = settings.model_dump()
    given: dict[str, dict[str, Any]] = {"training": {"seed": arguments.seed}}
    match arguments:
        case CollectionArguments(networks=networks, count=count, samples=samples):
            given["workloads"] = {"networks": networks, "count": count, "samples": samples}
        case OnboardingArguments(samples=samples, strategy=strategy, selector=selector):
            given["onboarding"] = {"samples": samples, "strategy": strategy, "selector": selector}
            given["training"]["epochs"] = arguments.epochs
        case TuningArguments(networks=networks):
            given["workloads"] = {"networks": networks}
        case EvaluationArguments(epochs=epochs, folds=folds):
            given["training"] |= {"epochs": epochs, "folds": folds}
    for section, changes in given.items():
        values[section] |= {name: value for name, value in changes.items() if value is not None}
    return FleetConfig.model_validate(values)
