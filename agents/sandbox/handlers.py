"""Questions that a worker process answers beside measuring: design spaces, networks, canaries.

Called by `child.py`; what is answered depends on no candidate. Imports TVM when called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agents.errors import AgentError
from agents.programs.canaries import make_canaries
from agents.programs.design_space import DesignSpace
from agents.programs.link import LinkLostError, Session
from agents.programs.rpc_session import DESCRIPTOR_FUNCTION, ENVIRONMENT_FUNCTION, RpcLink, RpcSession
from agents.programs.workloads import WorkloadRefusedError, network_workloads
from agents.records import Family, Workload, as_json_dict
from agents.sandbox.stages import ChildSettings


def propose(message: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """Draw candidates of a workload at random, near those that the message names, or derive them from those.

    Args:
        message: `op` and `family`; for `propose` and `evolve` also `count`, `seed`, `exclude`, and `parents`
            to evolve from; for `derive` the `traces`.
        workload: What they schedule.
    """
    try:
        space = DesignSpace(workload, Family(message["family"]))
    except WorkloadRefusedError as error:
        return {"event": "refused", "error": str(error)}
    if message["op"] == "derive":
        derivation = space.derive(message["traces"])
        traces = [candidate.trace for candidate in derivation.candidates]
        return {"event": "derived", "traces": traces, "refused": derivation.refused}
    how: dict[str, Any] = {"seed": message["seed"], "exclude": frozenset(message["exclude"])}
    if message["op"] == "evolve":
        proposal = space.evolve(message["parents"], message["count"], **how)
    else:
        proposal = space.sample(message["count"], **how)
    return {"event": "proposed", "traces": [candidate.trace for candidate in proposal.candidates]}


def list_workloads(networks: list[str]) -> dict[str, Any]:
    """List the workloads of networks, or say why not."""
    try:
        workloads = network_workloads(networks)
    except AgentError as error:
        return {"event": "refused", "error": str(error)}
    return {"event": "workloads", "workloads": [as_json_dict(workload) for workload in workloads]}


#: What a board's environment may say of a record that was timed there; the rest belongs to who builds.
_MOMENT_KEYS = (
    *("kernel", "load", "memory_available_bytes", "governor", "clock_mhz", "turbo", "temperature_c"),
    *("memory_pressure", "steal_ticks", "gpu"),
)
#: A board that is in use for longer is described another time.
_ASK_SECS = 5.0


def board(settings: ChildSettings) -> dict[str, Any]:
    """Ask the server of a board what its host is, or say why it is not known."""
    link = RpcLink(
        settings.tracker,
        settings.key,
        threads=settings.threads,
        cores=settings.timing_cores,
        wait_secs=_ASK_SECS,
    )
    try:
        with link.connect() as session:
            facts = session.host_facts(DESCRIPTOR_FUNCTION)
    except LinkLostError as error:
        return {"event": "refused", "error": str(error)}
    if not facts:
        return {"event": "refused", "error": "its server tells nothing of its host (TVM's own does not)"}
    return {"event": "board", "descriptor": facts}


def board_moment(session: Session, cores: Sequence[int], gpu_index: int | None) -> dict[str, Any]:
    """How the host behind a session does just now; empty where its server does not say."""
    if not isinstance(session, RpcSession):
        return {}
    index = -1 if gpu_index is None else gpu_index
    facts = session.host_facts(ENVIRONMENT_FUNCTION, json.dumps(list(cores)), index)
    return {key: value for key, value in facts.items() if key in _MOMENT_KEYS}


def canaries(family: Family) -> dict[str, Any]:
    """Give the canary programs of a family."""
    programs = [
        {"name": canary.name, "workload": as_json_dict(canary.workload), "trace": canary.candidate.trace}
        for canary in make_canaries(family)
    ]
    return {"event": "canaries", "canaries": programs}
