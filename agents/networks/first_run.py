"""The first run of a network: compiled without schedules, and compared with torch, before a search.

Runs in the confined process of `reader_process.py`; imports TVM, torch and ONNX Runtime when called. What TVM
imports wrongly, cannot compile, or computes otherwise is refused here, within seconds, and so is a network
whose output is drawn at random. The library is kept: it is the untuned side of the network's timing later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.errors import last_line
from agents.host.device_kinds import compiled_target
from agents.networks.graph import lowered, workload_ids, workloads_of
from agents.networks.latency import Place, outputs_and_program_secs, reference_run
from agents.networks.library import UNTUNED, compile_library, secs_by_workload
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.outputs import difference, has_finite, tolerance_of
from agents.networks.roundings import tolerance_for
from agents.networks.sources import LoadedNetwork, load
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family


def first_run(question: dict[str, Any], family: Family) -> dict[str, Any]:
    """Compile a network without schedules, run it once, and compare its output.

    Args:
        question: `network` (its spelling), `target` (of the device), `folder` (where the library goes),
            `threads`, `gpu_index` (of the CUDA device; None: the CPU).
        family: Of the device.

    Returns:
        `difference` (largest relative difference from torch's output, or from ONNX Runtime's; None without
        either), `precision` (narrowest floating type of the network), `workloads` (how many), `program_secs`
        (of each workload without a schedule, all its uses in a run together; empty for a GPU).

    Raises:
        NetworkRefusedError: It has no workload, draws its output at random, does not compile, or TVM computes
            another output.
    """
    text = question["network"]
    loaded = load(read_network_name(text))
    values = loaded.random_inputs()
    place = Place(threads=question["threads"], gpu_index=question["gpu_index"])
    expected = _expected(loaded, values, place)
    load_tensor_intrinsics(family)
    import tvm

    module = lowered(loaded, family)
    workloads = workloads_of(module, family, text)
    library = Path(question["folder"]) / UNTUNED
    compile_library(module, tvm.target.Target(compiled_target(question["target"])), library, text)
    try:
        outputs, secs = outputs_and_program_secs(str(library), values, place)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {text}: TVM compiles it, but its library does not run: {last_line(error)}"
        ) from None
    precision = loaded.precision()
    apart = None
    if expected is not None:
        apart = difference(outputs, expected)
        allowed = tolerance_for(loaded, values, expected, apart)
    if apart is not None and not apart <= allowed:
        raise NetworkRefusedError(
            f"network {text}: TVM computes another output: it is {apart:.1e} of the largest value away from "
            f"{loaded.reference}'s, and {allowed:.1e} is allowed for {precision}; TVM imports an "
            f"operator wrongly, or roundings add up: try a wider type, or other operators than some of "
            f"{', '.join(loaded.operators())[:300]}"
        )
    return {
        "difference": apart,
        "precision": precision,
        "workloads": len(workloads),
        "program_secs": {} if place.gpu_index is not None else secs_by_workload(secs, workload_ids(module)),
    }


def _expected(loaded: LoadedNetwork, values: list[Any], place: Place) -> list[Any] | None:
    """The right outputs; None if there is no ONNX Runtime for an ONNX model.

    Raises:
        NetworkRefusedError: They are no function of the inputs, or the network does not run.
    """
    text = loaded.network.text
    try:
        run = reference_run(loaded, values, place)
        expected, again = run(), run()
    except ImportError:
        return None
    except Exception as error:
        raise NetworkRefusedError(
            f"network {text}: {loaded.reference} cannot run it: {last_line(error)}"
        ) from None
    if not expected:
        raise NetworkRefusedError(f"network {text}: gives no tensor, so there is nothing to compute")
    if not difference(again, expected) <= tolerance_of(loaded.precision()):
        raise NetworkRefusedError(
            f"network {text}: is no function of its inputs: a second run of {loaded.reference} gives another "
            "output; export it without random operators (randn, dropout in training) and buffers that change"
        )
    # Operators whose shapes depend on values may give nothing here: `lowered` names them.
    if any(array.size for array in expected) and not any(map(has_finite, expected)):
        raise NetworkRefusedError(
            f"network {text}: the output of {loaded.reference} holds no finite number, so no library can be "
            "compared with it; use a wider type, or other weights"
        )
    return expected
