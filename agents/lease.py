"""The coordinator's right to a device, as it travels with a batch and comes back with its records.

`disk_spool.py` keeps the tag beside each record, so that records of a lease whose agent or coordinator died
can still be told from those of a lease that expired. Who grants leases is not known here.
"""

from __future__ import annotations

from agents.records import DeviceId
from agents.values import Value


class LeaseTag(Value, frozen=True, kw_only=True):
    """Under which lease a record was made."""

    job_id: str
    #: Number of the lease among those of the device; it only grows. Results of an older one are fenced off.
    fencing_token: int


class Lease(Value, frozen=True, kw_only=True):
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
