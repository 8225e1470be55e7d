"""How long a whole network takes: TVM untuned and tuned, torch eager and compiled, ONNX Runtime, OpenVINO.

All are timed in turn, in the confined process of `reader_process.py`, pinned to the device's cores, under
the host's timing lock, with as many threads for each as the device has, each at the best settings that we
know. Every side gets the same input; outputs are compared with torch's, or with ONNX Runtime's where there is
no torch program. On a GPU the inputs and weights lie in its memory, a run ends with the outputs in the
host's, and all compute in float32 throughout, as TVM does.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.errors import first_line
from agents.host.host_lock import timing_lock
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.outputs import array_of, difference, tensor_of, tolerance_of, tvm_arrays
from agents.networks.roundings import tolerance_for
from agents.networks.sources import LoadedNetwork, load

#: Runs the network once and gives its outputs as NumPy arrays.
_Run = Callable[[], list[Any]]

#: Turns in which all sides are timed, and seconds that a side's turns may take: a network without schedules
#: may run for half a minute.
_TURNS, _SIDE_SECS = 7, 20.0
#: Runs before the turns, and how long one takes that needs no other before it.
_WARM_RUNS, _LONG_RUN_SECS = 3, 2.0
#: Runs of which each program's least time counts: as many as fill these seconds.
_LEAST_RUNS, _MOST_RUNS, _RUNS_SECS = 4, 20, 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a network runs."""

    threads: int
    #: Of the CUDA device; None: the CPU.
    gpu_index: int | None


def time_sides(question: dict[str, Any]) -> dict[str, Any]:
    """Time a network in all ways that there are here.

    Args:
        question: `network`, `libraries` (path of each, by side), `sides` (of `SIDES`; the one whose output is
            right is timed too), `threads`,
            `turn_secs` (least seconds of a side in one turn), `lock` (path of the timing lock, may be empty),
            `gpu_index` (of the CUDA device; None: the CPU).

    Returns:
        `secs` (median of the turns, by side), `turns` (mean seconds of each turn, by side), `absent` (why a
        side is missing), `reference` (whose output the others are compared with),
        `differences` (largest relative difference from it, by side; None where shapes differ or one alone is
        no finite number), `precision` (narrowest floating type of the network), `tolerance` (how far right
        libraries may be from it), `threads`, `inputs`.

    Raises:
        NetworkRefusedError: The libraries cannot be loaded or run.
    """
    text, threads = question["network"], question["threads"]
    loaded = load(read_network_name(text))
    place = Place(threads=threads, gpu_index=question["gpu_index"])
    values = loaded.random_inputs()
    ways = [side for side in SIDES if side in question["sides"] or side == _reference_side(loaded)]
    lock: AbstractContextManager[Any] = nullcontext()
    if question["lock"]:
        lock = timing_lock(Path(question["lock"]))
    absent: dict[str, str] = {}
    runs: dict[str, _Run] = {}
    outputs: dict[str, list[Any]] = {}
    #: Of libraries: their first run compiles nothing.
    first_secs: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for side in (*ways, *question["libraries"]):
            path = question["libraries"].get(side)
            try:
                runs[side] = (
                    library_run(path, values, place) if path else _MAKERS[side](loaded, values, place)
                )
                began = time.perf_counter()
                outputs[side] = runs[side]()
                if not outputs[side]:
                    raise RuntimeError("it gives no tensor")
                if path:
                    first_secs[side] = time.perf_counter() - began
            except Exception as error:
                if side in ("tvm_tuned", "tvm_untuned"):  # those that were made just now
                    raise NetworkRefusedError(
                        f"network {text}: its library ({side}) does not run: {first_line(error)}"
                    ) from None
                runs.pop(side, None)
                outputs.pop(side, None)
                absent[side] = first_line(error)
        reference, differences = _compared(outputs)
        with lock:
            turns = _timed(runs, first_secs, question["turn_secs"])
    farthest = max(
        (relative for side, relative in differences.items() if side in question["libraries"]), default=0.0
    )
    tolerance = tolerance_of(loaded.precision())
    if reference == "torch_eager":
        tolerance = tolerance_for(loaded, values, outputs[reference], farthest)
    return {
        "secs": {side: statistics.median(secs) for side, secs in turns.items()},
        "turns": turns,
        "absent": absent,
        "reference": reference,
        # JSON knows no infinity.
        "differences": {
            side: relative if math.isfinite(relative) else None for side, relative in differences.items()
        },
        "precision": loaded.precision(),
        "tolerance": tolerance,
        "threads": threads,
        "inputs": [[name, list(shape), dtype] for name, shape, dtype in loaded.inputs],
    }


def _timed(
    runs: Mapping[str, _Run], first_secs: Mapping[str, float], turn_secs: float
) -> dict[str, list[float]]:
    """Mean seconds of a run in each turn; a turn begins with another side each time.

    Args:
        runs: By side.
        first_secs: Seconds of sides that ran once already, if the next run takes as long.
        turn_secs: Least seconds of a side in one turn.
    """
    loops: dict[str, int] = {}
    turns: dict[str, int] = {}
    for side, run in runs.items():
        once = first_secs.get(side, 0.0)
        for _ in range(_WARM_RUNS if once < _LONG_RUN_SECS else 0):
            began = time.perf_counter()
            run()
            once = time.perf_counter() - began
            if once >= _LONG_RUN_SECS:
                break
        turns[side] = min(_TURNS, max(1, round(_SIDE_SECS / max(once, turn_secs))))
        loops[side] = max(1, round(turn_secs / max(once, 1e-6)))
    secs_by_side: dict[str, list[float]] = {side: [] for side in runs}
    sides = list(runs)
    for turn in range(_TURNS):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            if turn >= turns[side]:
                continue
            run, count = runs[side], loops[side]
            began = time.perf_counter()
            for _ in range(count):
                run()
            secs_by_side[side].append((time.perf_counter() - began) / count)
    return secs_by_side


def _compared(outputs: Mapping[str, list[Any]]) -> tuple[str, dict[str, float]]:
    """Whose output is taken for right, and how far others are from it."""
    references = ("torch_eager", "onnxruntime", "tvm_untuned")
    reference = next((side for side in references if side in outputs), next(iter(outputs)))
    expected = outputs[reference]
    return reference, {
        side: difference(output, expected) for side, output in outputs.items() if side != reference
    }


def library_run(path: str, values: list[Any], place: Place) -> _Run:
    """Load a compiled library, and run it on these inputs."""
    machine, inputs = _loaded_library(path, values, place)
    function = machine["main"]
    return lambda: tvm_arrays(function(*inputs))


def _loaded_library(path: str, values: list[Any], place: Place) -> tuple[Any, list[Any]]:
    """The virtual machine of a compiled library, and the inputs on its device."""
    import tvm
    from tvm import relax

    device = tvm.cpu() if place.gpu_index is None else tvm.cuda(place.gpu_index)
    machine = relax.VirtualMachine(tvm.runtime.load_module(path), device)
    return machine, [tvm.runtime.tensor(value, device) for value in values]


def outputs_and_program_secs(
    path: str, values: list[Any], place: Place
) -> tuple[list[Any], dict[str, float]]:
    """Run a compiled library: its outputs, and the seconds of each function, all its calls together.

    The seconds mean nothing on a GPU, whose functions return before they have run.
    """
    machine, inputs = _loaded_library(path, values, place)
    outputs, run_secs, secs = _watched_run(machine, inputs)
    # A first run reads the library and its weights from the disk. That is nothing beside a long run.
    if run_secs < _LONG_RUN_SECS:
        _, _, secs = _watched_run(machine, inputs)
    return tvm_arrays(outputs), secs


def least_program_secs(machine: Any, values: list[Any]) -> dict[str, float]:
    """Seconds of each function of a network on the CPU, all its calls together: the least of several runs.

    Args:
        machine: `tvm.relax.VirtualMachine` with the network.
        values: Inputs.
    """
    import tvm

    inputs = [tvm.runtime.tensor(value) for value in values]
    _watched_run(machine, inputs)
    _, run_secs, least = _watched_run(machine, inputs)
    for _ in range(min(_MOST_RUNS, max(_LEAST_RUNS, round(_RUNS_SECS / run_secs))) - 1):
        _, _, secs = _watched_run(machine, inputs)
        least = {name: min(now_secs, least.get(name, math.inf)) for name, now_secs in secs.items()}
    return least


def _watched_run(machine: Any, inputs: list[Any]) -> tuple[Any, float, dict[str, float]]:
    """Run a network once: its outputs, its seconds, and those of each function."""
    began, secs = 0.0, dict[str, float]()

    def watch(function: Any, name: str, is_before: bool, value: Any, *arguments: Any) -> int:
        nonlocal began
        if is_before:
            began = time.perf_counter()
        else:
            secs[name] = secs.get(name, 0.0) + time.perf_counter() - began
        return 0  # go on

    machine.set_instrument(watch)
    run_began = time.perf_counter()
    outputs = machine["main"](*inputs)
    return outputs, time.perf_counter() - run_began, secs


def _torch_call(
    loaded: LoadedNetwork, values: list[Any], device: str = "cpu"
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module of an exported program, and its arguments."""
    import torch

    program = loaded.program
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        # Devices that the program names move too, which `Module.to` leaves as they are. The pass changes the
        # program itself, which others still need.
        program = move_to_device_pass(load(loaded.network).program, device)
    leaves = [tensor_of(value).to(device) for value in values]
    args, named = torch.utils._pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return program.module(check_guards=False), args, named


def _torch(compiled: bool) -> Callable[[LoadedNetwork, list[Any], Place], _Run]:
    def make(loaded: LoadedNetwork, values: list[Any], place: Place) -> _Run:
        if loaded.program is None:
            raise RuntimeError("an ONNX file has no torch program")
        import torch

        torch.set_num_threads(place.threads)
        if place.gpu_index is None:
            module, args, named = _torch_call(loaded, values)
        else:
            # Convolutions would have ten bits of mantissa, and nobody else's output be like theirs.
            torch.backends.cudnn.allow_tf32 = False
            module, args, named = _torch_call(loaded, values, f"cuda:{place.gpu_index}")
        if compiled:
            if not (shutil.which("g++") or shutil.which("clang++")):
                raise RuntimeError("there is no C++ compiler; install g++")
            # Weights become constants in the order that oneDNN reads, and products are tried several ways.
            options: dict[str, Any] = {"freezing": True, "max_autotune": True}
            module = torch.compile(module, options=options if place.gpu_index is None else None)

        def run() -> list[Any]:
            with torch.inference_mode():
                leaves = torch.utils._pytree.tree_leaves(module(*args, **named))
            return [array_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

        return run

    return make


def reference_run(loaded: LoadedNetwork, values: list[Any], place: Place) -> _Run:
    """Run a network as it came: by torch, or by ONNX Runtime if it is an ONNX model."""
    return _MAKERS[_reference_side(loaded)](loaded, values, place)


def _reference_side(loaded: LoadedNetwork) -> str:
    return "onnxruntime" if loaded.program is None else "torch_eager"


def _onnx_bytes(loaded: LoadedNetwork, values: list[Any]) -> bytes:
    """The network as an ONNX model."""
    model = loaded.onnx_model
    if model is None:
        import torch

        module, args, named = _torch_call(loaded, values)
        exported: Any = torch.onnx.export(module, args, kwargs=named, dynamo=True, verbose=False)
        model = exported.model_proto
    return bytes(model.SerializeToString())


def _onnxruntime(loaded: LoadedNetwork, values: list[Any], place: Place) -> _Run:
    import onnxruntime

    providers: list[Any] = ["CPUExecutionProvider"]
    if place.gpu_index is not None:
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise RuntimeError("this ONNX Runtime has no CUDA; install onnxruntime-gpu")
        choices = {"device_id": place.gpu_index, "use_tf32": 0}
        providers.insert(0, ("CUDAExecutionProvider", choices))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = place.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(_onnx_bytes(loaded, values), options, providers=providers)
    names = [model_input.name for model_input in session.get_inputs()]
    feeds = dict(zip(names, values, strict=True))
    return lambda: list(session.run(None, feeds))


def _openvino(loaded: LoadedNetwork, values: list[Any], place: Place) -> _Run:
    import openvino

    if place.gpu_index is not None:
        raise RuntimeError("OpenVINO is timed on CPUs only")
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": place.threads, "PERFORMANCE_HINT": "LATENCY"}
    if loaded.precision() == "float32":
        # Where a processor has bfloat16, it would compute in that.
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    core = openvino.Core()
    model = core.read_model(_onnx_bytes(loaded, values))
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for number, value in enumerate(values):
        request.set_input_tensor(number, openvino.Tensor(value, shared_memory=True))

    def run() -> list[Any]:
        request.infer()
        return [tensor.data.copy() for tensor in request.output_tensors]

    return run


_MAKERS: dict[str, Callable[[LoadedNetwork, list[Any], Place], _Run]] = {
    "torch_eager": _torch(False),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch_compile": _torch(True),
}
#: Ways to run a network beside compiled libraries.
SIDES = tuple(_MAKERS)
