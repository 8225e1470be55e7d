"""Workloads in use in a worker process: their modules, arguments, right answers. Called by `child.py`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agents.programs.build import Built, CandidateRefused
from agents.programs.check import argument_values, difference, poisoned, reference_outputs, tolerance_of
from agents.programs.link import is_remote
from agents.programs.workloads import WorkloadRefusedError, arguments_of, own_module
from agents.records import CandidateId, Workload

#: Workloads whose module and values stay loaded; a batch seldom holds more.
_KEPT_WORKLOADS = 16
#: Compiled programs that are run again and again (canaries).
_KEPT_PROGRAMS = 8


@dataclass
class _Loaded:
    """A workload; what is made of it is made when it is asked for."""

    workload: Workload
    module: Any
    #: Arguments on the local device; None until asked for.
    arguments: list[Any] | None = None

    @cached_property
    def values(self) -> list[Any]:
        """Values of the arguments, in this process's memory."""
        seed = int(self.workload.workload_id, 16)
        return argument_values(self.workload.arg_shapes, self.workload.arg_dtypes, seed)

    @cached_property
    def outputs(self) -> dict[int, Any]:
        """Right outputs by argument index."""
        return reference_outputs(self.module, self.values)

    @cached_property
    def tolerance(self) -> float:
        """Relative difference that a legal schedule may show in them."""
        return tolerance_of(self.module)


class Programs:
    """What worker processes keep of workloads and canaries, least recently used dropped."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._built: OrderedDict[str, Built] = OrderedDict()

    def module(self, workload: Workload) -> Any:
        """The unscheduled `tvm.IRModule`."""
        return self._entry(workload).module

    def arguments(self, workload: Workload, device: Any) -> list[Any]:
        """Arguments on `device`, with values that depend on the workload only.

        Those on a local device are made once; behind a wire they end with their session.
        """
        import tvm

        entry = self._entry(workload)
        if entry.arguments is not None and not is_remote(device):
            return entry.arguments
        arguments = [tvm.runtime.tensor(value, device=device) for value in entry.values]
        if not is_remote(device):
            entry.arguments = arguments
        return arguments

    def prepare_reference(self, workload: Workload) -> None:
        """Run the unscheduled program, unless that was done: slow, and apart from every candidate."""
        entry = self._entry(workload)
        _ = entry.outputs, entry.tolerance

    def wrong_output(self, workload: Workload, function: Any, arguments: Sequence[Any], device: Any) -> str:
        """Run a candidate's `main` once and compare; empty if its output is right, else one sentence.

        `prepare_reference` was called for its workload. Outputs among the arguments are overwritten first.
        """
        entry = self._entry(workload)
        outputs = entry.outputs
        spoilt = poisoned(entry.values, outputs)
        for index in outputs:
            arguments[index].copyfrom(spoilt[index])
        function(*arguments)
        device.sync()
        actual = {index: arguments[index].numpy() for index in outputs}
        return difference(outputs, actual, tolerance=entry.tolerance)

    def built(self, candidate_id: CandidateId) -> Built | None:
        """A program that was kept."""
        return self._built.get(candidate_id)

    def keep(self, candidate_id: CandidateId, built: Built) -> None:
        """Keep a compiled program that will be asked for again."""
        self._built[candidate_id] = built
        while len(self._built) > _KEPT_PROGRAMS:
            self._built.popitem(last=False)

    def _entry(self, workload: Workload) -> _Loaded:
        key = workload.workload_id
        if key not in self._loaded:
            try:
                module = own_module(workload)
            except WorkloadRefusedError as error:
                raise CandidateRefused(str(error)) from error
            _check_arguments(module, workload)
            self._loaded[key] = _Loaded(workload, module)
            while len(self._loaded) > _KEPT_WORKLOADS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]


def _check_arguments(module: Any, workload: Workload) -> None:
    """Refuse a workload whose program takes other arguments than it names: calls are not checked."""
    named, accepted = (workload.arg_shapes, workload.arg_dtypes), arguments_of(module)
    if named != accepted:
        raise CandidateRefused(
            f"the workload names arguments {named}, its program takes {accepted}: its records belong "
            "to another"
        )
