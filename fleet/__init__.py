"""Measure tensor programs on a fleet of devices, and learn cost models from them.

The names below are for programs; `fleet --help` is for people. They are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.api.client import DaemonClient
    from fleet.daemon.embedded import run
    from fleet.daemon.engine_options import EngineOptions, connect
    from fleet.errors import FleetError, StoreError
    from fleet.public import StoreView, open_store
    from fleet.public_library import NetworkLibrary, load_library
    from fleet.public_model import DeviceModel, load_model, tvm_measure
    from fleet.requests.collect import Collect
    from fleet.requests.evaluate import Evaluate
    from fleet.requests.fingerprint import FingerprintDevices
    from fleet.requests.import_logs import ImportLogs
    from fleet.requests.onboard import Onboard
    from fleet.requests.tune import Tune

_PLACES = {
    "Collect": "fleet.requests.collect",
    "DaemonClient": "fleet.api.client",
    "DeviceModel": "fleet.public_model",
    "EngineOptions": "fleet.daemon.engine_options",
    "Evaluate": "fleet.requests.evaluate",
    "FingerprintDevices": "fleet.requests.fingerprint",
    "FleetError": "fleet.errors",
    "ImportLogs": "fleet.requests.import_logs",
    "NetworkLibrary": "fleet.public_library",
    "Onboard": "fleet.requests.onboard",
    "StoreError": "fleet.errors",
    "StoreView": "fleet.public",
    "Tune": "fleet.requests.tune",
    "connect": "fleet.daemon.engine_options",
    "load_library": "fleet.public_library",
    "load_model": "fleet.public_model",
    "open_store": "fleet.public",
    "run": "fleet.daemon.embedded",
    "tvm_measure": "fleet.public_model",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fleet' has no attribute {name!r}; it offers {', '.join(_PLACES)}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


__all__ = [
    "Collect",
    "DaemonClient",
    "DeviceModel",
    "EngineOptions",
    "Evaluate",
    "FingerprintDevices",
    "FleetError",
    "ImportLogs",
    "NetworkLibrary",
    "Onboard",
    "StoreError",
    "StoreView",
    "Tune",
    "connect",
    "load_library",
    "load_model",
    "open_store",
    "run",
    "tvm_measure",
]
