"""The coordinator's view in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fleet.core.event_words import DeviceState

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Name, keys in a device's view, what it is.
_DEVICE_COUNTERS = (
    ("fleet_records", "records", "Records in the store."),
    ("fleet_ok_records", "ok", "Records with a latency."),
    ("fleet_failed_records", "failed", "Records of candidates that failed."),
    ("fleet_late_records", "late", "Records of leases that were taken back; kept apart."),
)
_DEVICE_GAUGES = (
    ("fleet_records_per_second", "records_per_s", "Records a second over the last minute."),
    ("fleet_last_record_timestamp_seconds", "last_record_at", "Unix time of the last record."),
    ("fleet_incarnation", "incarnation", "Number of the agent's life."),
)


class _Collector:
    """Gives the metrics of one view."""

    def __init__(self, view: Mapping[str, Any]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """What `generate_latest` asks for."""
        view = self._view
        coordinator, devices = view["coordinator"], view["devices"]
        yield InfoMetricFamily(
            "fleet",
            "The coordinator.",
            {"version": str(coordinator["version"]), "state": coordinator["state"]},
        )
        yield GaugeMetricFamily("fleet_start_time_seconds", "When it started.", value=view["started_at"])
        yield GaugeMetricFamily(
            "fleet_view_time_seconds", "When these numbers were taken.", value=view["now"]
        )
        for name, key, text in _DEVICE_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["device"])
            for device_id, found in devices.items():
                counter.add_metric([device_id], found.get(key) or 0)
            yield counter
        for name, key, text in _DEVICE_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["device"])
            for device_id, found in devices.items():
                if found.get(key) is not None:
                    gauge.add_metric([device_id], found[key])
            yield gauge
        states = GaugeMetricFamily(
            "fleet_device_state", "1 for the state it is in.", labels=["device", "state"]
        )
        for device_id, found in devices.items():
            for state in DeviceState:
                states.add_metric([device_id, state.value], float(found["state"] == state.value))
        yield states
        jobs = GaugeMetricFamily("fleet_jobs", "Jobs by state.", labels=["state"])
        for state_name, count in view["jobs"].items():
            jobs.add_metric([state_name], count)
        yield jobs
        store = view["store"]
        yield GaugeMetricFamily(
            "fleet_table_version", "Version of the store's table.", value=store["table_version"]
        )
        yield GaugeMetricFamily(
            "fleet_waiting_records",
            "Records that are durable but not in the table yet.",
            value=store.get("waiting", 0),
        )
        yield GaugeMetricFamily(
            "fleet_refused_records",
            "Records that the store would not have; they are set aside.",
            value=store.get("refused", 0),
        )
        yield GaugeMetricFamily("fleet_alarms", "Alarms that are remembered.", value=len(view["alarms"]))


def metrics_text(view: Mapping[str, Any]) -> str:
    """All metrics of a view, a line each.

    Args:
        view: See `fleet.daemon.viewing.make_view`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(view))
    return generate_latest(registry).decode()
