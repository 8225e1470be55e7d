"""What all sections of the configuration share. Only `fleet.config.settings` and its sections call it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _as_tuple(value: Any) -> Any:
    """YAML and flags give lists where a frozen model wants tuples."""
    return tuple(value) if isinstance(value, list) else value


#: A list of names.
Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Section(BaseModel):
    """One subject; unknown keys and wrong types are faults."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


__all__ = ["Names", "Section"]
