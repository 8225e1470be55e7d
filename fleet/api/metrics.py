"""The coordinator's view, and how the daemon itself does, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from fleet.api.connections import Connections
from fleet.core.words import DeviceState
from fleet.histogram import BOUNDS_SECS
from fleet.json_types import Json

#: Name, keys in a device's view, what it is.
_DEVICE_COUNTERS = (
    ("fleet_records", "records", "Records in the store."),
    ("fleet_ok_records", "ok", "Records with a latency."),
    ("fleet_failed_records", "failed", "Records of candidates that failed."),
    ("fleet_late_records", "late", "Records of leases that were taken back; kept apart."),
    ("fleet_lease_expiries", "expiries", "Leases that no sign of life renewed in time."),
)
_DEVICE_GAUGES = (
    ("fleet_records_per_second", "records_per_s", "Records a second over the last minute."),
    ("fleet_last_record_timestamp_seconds", "last_record_at", "Unix time of the last record."),
    ("fleet_incarnation", "incarnation", "Number of the agent's life."),
)
#: Name, key in the view's `health`, what it is.
_HEALTH_GAUGES = (
    ("fleet_event_log_size_bytes", "event_bytes", "Length of the events that a start replays."),
    (
        "fleet_oldest_waiting_record_age_seconds",
        "waiting_secs",
        "How long the oldest record has been durable without being in the table; 0 where none waits.",
    ),
    (
        "fleet_unacknowledged_records",
        "unacknowledged",
        "Records that have come and are not acknowledged, as while the disk is full.",
    ),
    (
        "fleet_oldest_unacknowledged_record_age_seconds",
        "unacknowledged_secs",
        "Time since the oldest of them came; 0 where there is none.",
    ),
    (
        "fleet_training_age_seconds",
        "training_secs",
        "How long the training that runs has run; 0 where none does.",
    ),
)
#: Counters of its `clock`, in the same form.
_CLOCK_COUNTERS = (
    ("fleet_clock_gaps", "gaps", "Turns that came so late that the time before them was left out."),
    ("fleet_clock_gap_seconds", "gap_secs", "Seconds that were left out."),
    ("fleet_clock_steps", "steps", "Times that the wall clock was seen to be set."),
)


class _Collector:
    """Gives the metrics of one view and of the API."""

    def __init__(self, view: Json, connections: Connections, scores: Json) -> None:
        self._view, self._connections, self._scores = view, connections, scores

    def collect(self) -> Iterator[Metric]:
        """What `generate_latest` asks for."""
        view, connections = self._view, self._connections
        coordinator, devices, store = view["coordinator"], view["devices"], view["store"]
        training = view["training"]
        yield InfoMetricFamily(
            "fleet",
            "The coordinator.",
            {"version": str(coordinator["version"]), "state": coordinator["state"]},
        )
        for name, value, text in (
            ("fleet_start_time_seconds", view["started_at"], "When it started."),
            ("fleet_view_time_seconds", view["now"], "When these numbers were taken."),
            ("fleet_table_version", store["table_version"], "Version of the store's table."),
            (
                "fleet_waiting_records",
                store.get("waiting", 0),
                "Records that are durable, not yet in the table.",
            ),
            ("fleet_refused_records", store.get("refused", 0), "Records that the store set aside."),
            ("fleet_alarms", len(view["alarms"]), "Alarms that are remembered."),
            ("fleet_training_running", training["state"] == "running", "1 while a model is trained."),
            ("fleet_api_connections", connections.count, "Open connections of the API."),
            ("fleet_api_connections_limit", connections.limits.most, "Connections that it may have."),
            *((name, view["health"][key], text) for name, key, text in _HEALTH_GAUGES),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, key, text in _CLOCK_COUNTERS:
            yield CounterMetricFamily(name, text, value=view["clock"].get(key, 0))
        for name, key, text in _DEVICE_COUNTERS:
            counts = {device_id: device.get(key) or 0 for device_id, device in devices.items()}
            yield _each(CounterMetricFamily(name, text, labels=["device"]), counts)
        for name, key, text in _DEVICE_GAUGES:
            values = {device_id: device.get(key) for device_id, device in devices.items()}
            yield _each(GaugeMetricFamily(name, text, labels=["device"]), values)
        states = GaugeMetricFamily(
            "fleet_device_state", "1 for the state it is in.", labels=["device", "state"]
        )
        for device_id, device in devices.items():
            for state in DeviceState:
                states.add_metric([device_id, state.value], float(device["state"] == state.value))
        yield states
        yield _each(GaugeMetricFamily("fleet_jobs", "Jobs by state.", labels=["state"]), view["jobs"])
        failures = GaugeMetricFamily(
            "fleet_training_failures",
            "Trainings of a family that failed since one succeeded.",
            labels=["family"],
        )
        yield _each(failures, training["failures"])
        refused = CounterMetricFamily(
            "fleet_api_connections_refused",
            "Connections that it closed for want of room or time.",
            labels=["why"],
        )
        yield _each(refused, connections.refused)
        yield from _health(view["health"])
        yield from _scores(self._scores)


def _health(health: Json) -> Iterator[Metric]:
    """How the coordinator itself does; see `fleet.engine.fleet_view.health_of`."""
    turns = HistogramMetricFamily("fleet_turn_seconds", "Time of a turn, without its wait for messages.")
    _add(turns, [], health["turns"])
    yield turns
    waits = HistogramMetricFamily(
        "fleet_fsync_seconds", "Time until the disk had what was written.", labels=["log"]
    )
    for name, histogram in health["disk_waits"].items():
        _add(waits, [name], histogram)
    yield waits
    free = GaugeMetricFamily("fleet_disk_free_bytes", "Room on the disk of a folder.", labels=["folder"])
    yield _each(free, health["free_bytes"])


def _each(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float | None]
) -> CounterMetricFamily | GaugeMetricFamily:
    """A family with a value for each label; where there is None, there is no sample."""
    for label, value in values.items():
        if value is not None:
            family.add_metric([label], value)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Json) -> None:
    """Add a `fleet.histogram.Histogram`; Prometheus wants each class with all below it."""
    bounds = [*map(str, BOUNDS_SECS), "+Inf"]
    family.add_metric(
        labels, list(zip(bounds, accumulate(histogram["counts"]), strict=True)), histogram["sum_secs"]
    )


def _scores(scores: Json) -> Iterator[Metric]:
    """Who asks for scores, and how long that takes."""
    secs = HistogramMetricFamily("fleet_score_seconds", "Time of a request for scores that had its turn.")
    _add(secs, [], scores["secs"])
    yield secs
    yield CounterMetricFamily(
        "fleet_scored_candidates", "Candidates that were given a score.", value=scores["candidates"]
    )
    yield GaugeMetricFamily(
        "fleet_score_requests", "Requests that are read, wait or are scored.", value=scores["inside"]
    )
    refused = CounterMetricFamily("fleet_score_refused", "Requests for scores that got none.", labels=["why"])
    yield _each(refused, scores["refused"])


def metrics_text(view: Json, connections: Connections, scores: Json) -> str:
    """All metrics of a view, of the API and of this process, a line each.

    Args:
        view: See `fleet.engine.fleet_view.make_view`.
        connections: Those of the API.
        scores: `ScoreService.view`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(view, connections, scores))
    # Under the names that every program gives them: process_open_fds, process_max_fds, memory, processor.
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()
