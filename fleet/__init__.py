"""Measure tensor programs on a fleet of devices, and learn cost models from them.

The names below are for programs; `fleet --help` is for people. They are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.api.client import DaemonClient
    from fleet.errors import FleetError, StoreError
    from fleet.public import StoreView, open_store
    from fleet.public_engine import EngineOptions, connect
    from fleet.public_model import DeviceModel, load_model, tvm_measure
    from fleet.public_work import collect, onboard, tune

_PLACES = {
    "DaemonClient": "fleet.api.client",
    "DeviceModel": "fleet.public_model",
    "EngineOptions": "fleet.public_engine",
    "FleetError": "fleet.errors",
    "StoreError": "fleet.errors",
    "StoreView": "fleet.public",
    "collect": "fleet.public_work",
    "connect": "fleet.public_engine",
    "load_model": "fleet.public_model",
    "onboard": "fleet.public_work",
    "open_store": "fleet.public",
    "tune": "fleet.public_work",
    "tvm_measure": "fleet.public_model",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fleet' has no attribute {name!r}; it offers {', '.join(_PLACES)}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


__all__ = [
    "DaemonClient",
    "DeviceModel",
    "EngineOptions",
    "FleetError",
    "StoreError",
    "StoreView",
    "collect",
    "connect",
    "load_model",
    "onboard",
    "open_store",
    "tune",
    "tvm_measure",
]
