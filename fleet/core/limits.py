"""Numbers of the state's rules: how long a lease lasts, when to try again, what asks for a training."""

from __future__ import annotations

from agents.values import Value


class Limits(Value, frozen=True, kw_only=True):
    """Numbers of the rules in `state.py`; the defaults fit a fleet of real devices."""

    #: A lease that no heartbeat renews lasts this long.
    lease_secs: float = 60.0
    #: Work without a finished candidate renews a lease for so long: builds and runs have time-outs of their
    #: own far below this.
    stall_secs: float = 300.0
    #: An agent that has not passed its probe after this is stopped and started again.
    start_secs: float = 180.0
    #: Leases of a device at once: one is at work, the next waits with the agent, so that it never idles.
    leases: int = 2
    #: Longest wait before a restart; the first is at once, the next waits 1 s, then twice as long each time.
    restart_wait_secs: float = 60.0
    #: Deaths and refusals in a row, without a finished candidate between, that quarantine a device.
    device_failures: int = 5
    #: A quarantined device is probed again after this.
    quarantine_secs: float = 600.0
    #: Crashes that quarantine a job.
    job_crashes: int = 3
    #: Jobs that a device should have waiting, and candidates of one job: what `WantJobs` asks for, once half
    #: of them are gone.
    queued_jobs: int = 3
    job_candidates: int = 64
    #: Jobs are asked for again if none came.
    want_secs: float = 30.0
    #: Candidates that a device measures for its first head, and again in another environment; 0: neither.
    arrival_samples: int = 0
    return_samples: int = 0
    #: Least time between two onboardings of a device because it drifted.
    drift_pause_secs: float = 3600.0
    #: Devices with a head have their fingerprint measured, once in an environment.
    fingerprints: bool = False
    #: Drivers of requests that run at the same time.
    drivers: int = 2
    #: Measure for requests only: no jobs of the background are asked for or granted.
    requests_only: bool = False
    #: Whether there is a trainer: without one only requests ask for trainings, and get that answer.
    trains: bool = True
    #: New records of a family since its last training that ask for the next: at least so many, and at least
    #: this share of those it was made from.
    training_records: int = 512
    training_share: float = 0.2
    #: New records of a device before its drift, its environment or the lack of a head ask for a training: it
    #: would learn nothing new without them.
    reason_records: int = 64
    #: Least time between the ends of one training and the start of the next, and the first wait after a
    #: failed one, which doubles up to the last.
    training_pause_secs: float = 300.0
    training_retry_secs: float = 60.0
    training_retry_most_secs: float = 3600.0
