"""Questions that a worker process answers beside measuring: design spaces, networks, canaries.

Called by `child.py`; what is answered depends on no candidate. Imports TVM when called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agents.errors import AgentError
from agents.programs.canaries import make_canaries
from agents.programs.derivation import Derivation
from agents.programs.design_space import DesignSpace, Proposal
from agents.programs.link import Session
from agents.programs.rpc_session import DESCRIPTOR_FUNCTION, ENVIRONMENT_FUNCTION, RpcLink, RpcSession
from agents.programs.workloads import network_workloads
from agents.records import Family, Workload, as_json_dict
from agents.sandbox.stages import ChildSettings


def propose(message: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """Draw candidates of a workload at random or near parents, or derive them from foreign traces.

    Args:
        message: `family`, `count`, `seed`, `exclude`; `parents` to draw near, or `foreign` to derive from.
        workload: What they schedule.

    Raises:
        AgentError: The workload has no design space.
    """
    space = DesignSpace(workload, Family(message["family"]))
    count, seed, exclude = message["count"], message["seed"], frozenset(message["exclude"])
    made: Proposal | Derivation
    if foreign := message.get("foreign"):
        made = space.derive(foreign)
    elif parents := message.get("parents"):
        made = space.evolve(parents, count, seed=seed, exclude=exclude)
    else:
        made = space.sample(count, seed=seed, exclude=exclude)
    traces = [candidate.trace for candidate in made.candidates]
    refused = made.refused if isinstance(made, Derivation) else {}
    return {"event": "proposed", "traces": traces, "refused": refused}


def list_workloads(networks: list[str]) -> dict[str, Any]:
    """List the workloads of networks.

    Raises:
        AgentError: A network is unknown.
    """
    workloads = network_workloads(networks)
    return {"event": "workloads", "workloads": [as_json_dict(workload) for workload in workloads]}


#: What a board's environment may say of a record that was timed there; the rest belongs to who builds.
_MOMENT_KEYS = (
    *("kernel", "load", "memory_available_bytes", "governor", "clock_mhz", "turbo", "temperature_c"),
    *("memory_pressure", "steal_ticks", "gpu"),
)
#: A board that is in use for longer is described another time.
_ASK_SECS = 5.0


def board(settings: ChildSettings) -> dict[str, Any]:
    """Ask the server of a board what its host is.

    Raises:
        AgentError: It cannot be reached, or says nothing of its host.
    """
    link = RpcLink(
        settings.tracker,
        settings.key,
        threads=settings.threads,
        cores=settings.timing_cores,
        wait_secs=_ASK_SECS,
    )
    with link.connect() as session:
        facts = session.host_facts(DESCRIPTOR_FUNCTION)
    if not facts:
        raise AgentError("its server tells nothing of its host (TVM's own does not)")
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
