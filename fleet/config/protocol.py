"""How candidates are timed, as it is set in the fleet file and, for one device, in its own file."""

from __future__ import annotations

from pydantic import AliasChoices, Field, field_validator

from agents.records import STORED_PROTOCOL_KEYS, Protocol
from fleet.config.base import Section

_PROTOCOL = Protocol()


def _either(name: str) -> AliasChoices:
    """Accept the name of a field, and its key in files of every version."""
    return AliasChoices(name, STORED_PROTOCOL_KEYS[name])


class ProtocolSection(Section):
    """How candidates are timed: the fields of `agents.records.Protocol`, with bounds."""

    repeat: int = Field(default=_PROTOCOL.repeat, ge=1, le=1000)
    extra_repeats: int = Field(default=_PROTOCOL.extra_repeats, ge=0, le=1000)
    target_interval: float = Field(default=_PROTOCOL.target_interval, ge=0, le=10)
    reject_interval: float = Field(default=_PROTOCOL.reject_interval, ge=0, le=10)
    min_repeat_ms: float = Field(default=_PROTOCOL.min_repeat_ms, ge=0, le=60_000)
    max_number: int = Field(default=_PROTOCOL.max_number, ge=1, le=10_000_000)
    warmup_ms: float = Field(default=_PROTOCOL.warmup_ms, ge=0, le=600_000)
    cooldown_ms: float = Field(default=_PROTOCOL.cooldown_ms, ge=0, le=600_000)
    visits: int = Field(default=_PROTOCOL.visits, ge=1, le=1000)
    cache_flush: bool = _PROTOCOL.cache_flush
    early_stop_ratio: float = Field(default=_PROTOCOL.early_stop_ratio, ge=0, le=1e6)
    check_share: float = Field(default=_PROTOCOL.check_share, ge=0, le=1)
    build_timeout_secs: float = Field(
        default=_PROTOCOL.build_timeout_secs, gt=0, le=3600, validation_alias=_either("build_timeout_secs")
    )
    run_timeout_secs: float = Field(
        default=_PROTOCOL.run_timeout_secs, gt=0, le=3600, validation_alias=_either("run_timeout_secs")
    )
    #: A process that has only imported TVM already holds some 0.4 GiB.
    memory_limit_gib: float = Field(default=_PROTOCOL.memory_limit_gib, ge=0.5, le=65_536)

    @field_validator("early_stop_ratio")
    @classmethod
    def _off_or_slower(cls, ratio: float) -> float:
        if 0 < ratio <= 1:
            raise ValueError("must be 0 (never stop early) or above 1 (times the best latency)")
        return ratio


__all__ = ["ProtocolSection"]
