"""The coordinator's right to a device, as it travels with a batch and comes back with its records.

Standard library only. `disk_spool.py` keeps the tag beside each record, so that records of a lease whose
agent or coordinator died can still be told from those of a lease that expired. Who grants leases is not known
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.records import DeviceId, FastPickle


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTag(FastPickle):
    """Under which lease a record was made."""

    job_id: str
    #: Number of the lease among those of the device; it only grows. Results of an older one are fenced off.
    fencing_token: int

    def as_json(self) -> list[Any]:
        """The tag as JSON-ready values; `tag_from_json` reads them."""
        return [self.job_id, self.fencing_token]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(FastPickle):
    """The right to measure one job on one device until a deadline."""

    device_id: DeviceId
    job_id: str
    fencing_token: int
    #: By the coordinator's own count of time, which nobody else has; the agent does not judge it.
    deadline_secs: float

    @property
    def tag(self) -> LeaseTag:
        """What its results carry."""
        return LeaseTag(job_id=self.job_id, fencing_token=self.fencing_token)


def tag_from_json(value: Any) -> LeaseTag | None:
    """Read a tag; None where there is none.

    Raises:
        ValueError: The value is no tag.
    """
    if value is None:
        return None
    match value:
        case [str(job_id), int(fencing_token)] if not isinstance(fencing_token, bool):
            return LeaseTag(job_id=job_id, fencing_token=fencing_token)
    raise ValueError(f"a lease tag must be [job_id, fencing_token], got {value!r:.80}")
