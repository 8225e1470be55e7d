"""What a coordinator does seldom, a little at a time: device files, upkeep of the store, A/A runs.

`fleet.engine.coordinator` calls it at the end of each turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agents.records import NOISE, DeviceId
from fleet.core.events import JobState, RequestProgressed, RequestSubmitted
from fleet.core.request_words import RequestKind, RequestState
from fleet.engine.composition import Composition
from fleet.engine.device_updates import DeviceUpdates
from fleet.engine.ingest import Ingest
from fleet.errors import StoreFull
from fleet.requests.first_heads import first_head_requests

#: Least seconds between two rounds of what is due seldom.
_CHORES_SECS = 5.0
#: Between two looks at the device files: a change is believed at the second look that sees it.
_LOOK_SECS = 1.5
#: Device files are written for so long in one turn: each waits for the disk.
_DEVICES_SECS = 0.01
#: Pause after a step of the store's upkeep, and the same over the time that the step took.
_STEP_SECS, _STEP_LEAST_WAIT = 0.5, 10.0
#: States of jobs that are still to be measured; one under quarantine may never be.
_OPEN = frozenset({JobState.QUEUED, JobState.LEASED})


class Chores:
    """Knows what is due."""

    def __init__(self, parts: Composition, updates: DeviceUpdates, ingest: Ingest) -> None:
        self._parts, self._updates, self._ingest = parts, updates, ingest
        self._upkeep_at = parts.clock() + parts.settings.upkeep_secs
        self._upkeep: Iterator[object] | None = None
        self._upkeep_began = 0.0
        self._chores_at = self._devices_at = 0.0
        #: Families that nobody was asked for yet; once in a life is enough.
        self._headless = set(parts.settings.first_heads)

    def do(self, now: float, *, is_stopping: bool) -> None:
        """Do what is due."""
        parts = self._parts
        try:
            self._put_devices()
            if now >= self._upkeep_at and not parts.disk.is_full:
                self._do_upkeep(now)
            if now >= self._devices_at and not is_stopping and not parts.disk.is_full:
                self._devices_at = now + _LOOK_SECS
                self._updates.look()
            if now >= self._chores_at and not parts.disk.is_full:
                self._chores_at = now + _CHORES_SECS
                self._do_round(now, is_over=is_stopping or parts.settings.once)
        except StoreFull as error:
            parts.disk.full(error)

    def _put_devices(self) -> None:
        """Store what agents saw of their devices."""
        parts, began = self._parts, time.perf_counter()
        while parts.descriptors and time.perf_counter() - began < _DEVICES_SECS:
            device_id = next(iter(parts.descriptors))
            parts.store.put_device(parts.roster.all_specs[device_id], parts.descriptors[device_id])
            del parts.descriptors[device_id]

    def _do_round(self, now: float, *, is_over: bool) -> None:
        parts = self._parts
        parts.event_log.compact()
        self._ingest.end_silent()
        if parts.trainer is not None:
            self._tell_epochs(parts.trainer.view, now)
        if self._headless and not is_over:
            self._ask_for_first_heads(now)
        wall = parts.clock.wall()
        for device_id, incarnation in parts.up.items():
            if device_id not in parts.roster.specs:
                continue  # it left, and its agent is told to end
            parts.discovery.agent_up(parts.roster.specs[device_id], incarnation)
            if is_over or not parts.noise.is_due(device_id, now, wall):
                continue
            if self._has_noise_jobs(device_id):
                parts.noise.postpone(device_id, now)
            else:
                environment_id = parts.state.describe(device_id)["environment_id"]
                parts.noise.begin(device_id, environment_id, now, wall)

    def _has_noise_jobs(self, device_id: DeviceId) -> bool:
        """Whether an A/A run of a device waits, for its policy or a request: another would be the same."""
        state = self._parts.state
        return any(
            job.device_id == device_id and job.origin == NOISE and state.job_state(job.job_id) in _OPEN
            for job in self._parts.planner.queues.jobs()
        )

    def _tell_epochs(self, trainer: Mapping[str, Any], now: float) -> None:
        """Tell the requests of the running training which epoch it is in, if that is another than before."""
        state, epochs = self._parts.state, trainer.get("epochs") or {}
        for request in state.open_requests() if epochs else ():
            if request.kind is not RequestKind.TRAINING or request.family != trainer["family"]:
                continue
            progress = state.request(request.request_id)
            if progress is None or progress["state"] != RequestState.RUNNING:
                continue
            fresh = {name: epochs[name] for name in ("done", "of", "left_secs", "finding")}
            if (fresh["done"], fresh["of"]) != (progress["done"], progress["of"]):
                event = RequestProgressed(at_secs=now, request_id=request.request_id, **fresh)
                self._parts.event_log.append(event)

    def _ask_for_first_heads(self, now: float) -> None:
        """Have a device onboard itself where no device of its family has a head."""
        parts = self._parts
        live = parts.roster.live_names
        specs = {
            device_id: spec for device_id, spec in parts.roster.specs.items() if spec.family.value in live
        }
        requests = first_head_requests(
            specs,
            {device_id: parts.state.describe(device_id) for device_id in specs},
            parts.state.open_requests(),
            self._headless,
            parts.settings.limits.arrival_samples,
        )
        for family, request in requests.items():
            self._headless.discard(family)
            if parts.state.request(request.request_id) is None:
                parts.event_log.append(RequestSubmitted(at_secs=now, request=request))

    def _do_upkeep(self, now: float) -> None:
        """Do a step of the store's upkeep, or begin a round: all at once it takes seconds."""
        parts, began = self._parts, time.perf_counter()
        self._upkeep_at = now + parts.settings.upkeep_secs
        if self._upkeep is None:
            self._upkeep_began, self._upkeep = now, parts.store.upkeep_steps()
        try:
            is_over = next(self._upkeep, None) is None
        except StoreFull:
            self._upkeep = None  # begun anew when it is due again
            raise
        if is_over:
            self._upkeep = None
            self._upkeep_at = max(now, self._upkeep_began + parts.settings.upkeep_secs)
        else:
            wait = max(_STEP_SECS, _STEP_LEAST_WAIT * (time.perf_counter() - began))
            self._upkeep_at = now + wait
