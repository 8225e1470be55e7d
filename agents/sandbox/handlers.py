"""Questions that a worker process answers beside measuring: design spaces, networks, canaries.

Called by `child.py`; what is answered depends on no candidate. Imports TVM when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents.records import Family, as_json_dict

if TYPE_CHECKING:
    from agents.records import Workload


def propose(message: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """Draw candidates of a workload at random, near those that the message names, or derive them from those.

    Args:
        message: `op` and `family`; for `propose` and `evolve` also `count`, `seed`, `exclude`, and `parents`
            to evolve from; for `derive` the `traces`.
        workload: What they schedule.
    """
    from agents.programs.design_space import DesignSpace
    from agents.programs.workloads import WorkloadRefusedError

    try:
        space = DesignSpace(workload, Family(message["family"]))
    except WorkloadRefusedError as error:
        return {"event": "refused", "error": str(error)}
    if message["op"] == "derive":
        made = space.derive(message["traces"])
        traces = [candidate.trace for candidate in made.candidates]
        return {"event": "derived", "traces": traces, "refused": made.refused}
    how: dict[str, Any] = {"seed": message["seed"], "exclude": frozenset(message["exclude"])}
    if message["op"] == "evolve":
        proposal = space.evolve(message["parents"], message["count"], **how)
    else:
        proposal = space.sample(message["count"], **how)
    return {
        "event": "proposed",
        "traces": [candidate.trace for candidate in proposal.candidates],
        "tries": proposal.tries,
        "refused": proposal.refused,
        "repeated": proposal.repeated,
    }


def list_workloads(networks: list[str]) -> dict[str, Any]:
    """List the workloads of networks, or say why not."""
    from agents.errors import AgentError
    from agents.programs.workloads import network_workloads

    try:
        found = network_workloads(networks)
    except AgentError as error:
        return {"event": "refused", "error": str(error)}
    return {"event": "workloads", "workloads": [as_json_dict(workload) for workload in found]}


def canaries(family: Family) -> dict[str, Any]:
    """Give the canary programs of a family."""
    from agents.programs.canaries import make_canaries

    found = [
        {"name": canary.name, "workload": as_json_dict(canary.workload), "trace": canary.candidate.trace}
        for canary in make_canaries(family)
    ]
    return {"event": "canaries", "canaries": found}
