"""What `import fleet` offers to run what `fleet tune` made of a network: its compiled library."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agents.errors import first_line
from agents.networks.outputs import tvm_arrays, tvm_tensors
from fleet.errors import FleetError

if TYPE_CHECKING:
    import numpy as np
    import torch

    #: What a library takes and gives.
    Array: TypeAlias = np.ndarray[Any, Any] | torch.Tensor

#: Compiled code reads vectors from addresses that are multiples of this, in bytes.
_ALIGNMENT = 64
#: Where TVM's pool has its threads (`AffinityMode.kBig`).
_FASTEST_CORES = 1
#: What TVM says of an input that does not fit, and of a wrong number of inputs.
_MISFIT = re.compile(r"loc=param\[(\d+)\], param=(\w+), annotation=R\.Tensor\(\((.*?),?\), dtype=\"(\w+)\"\)")
_COUNT = re.compile(r"expects (\d+) arguments \(([^)]*)\)")


class NetworkLibrary:
    """A compiled network that runs in this process. Not safe between threads.

    Loads TVM. A library is machine code, and loading it runs it: load only those that you made.

    Attributes:
        path: Its file.
    """

    def __init__(self, path: Path, gpu_index: int | None, threads: int | None) -> None:
        import tvm
        from tvm import relax

        self.path = path
        self._device = tvm.cpu() if gpu_index is None else tvm.cuda(gpu_index)
        if threads is not None:
            cores = os.sched_getaffinity(0)
            tvm.get_global_func("runtime.config_threadpool")(_FASTEST_CORES, threads)
            # TVM keeps the calling thread on one core.
            os.sched_setaffinity(0, cores)
        try:
            machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), self._device)
            self._main = machine["main"]
        except Exception as error:
            raise FleetError(
                f"{path}: is no library of a network for this host ({first_line(error)}); "
                "`fleet tune DEVICE NETWORK` makes one"
            ) from None

    def __repr__(self) -> str:
        return f"NetworkLibrary({str(self.path)!r})"

    def __call__(self, *inputs: Array) -> Any:
        """Run the network once.

        Args:
            inputs: Its inputs in order, of the shapes and types that it was tuned for: NumPy arrays or torch
                tensors. A torch tensor that lies on the library's device is not copied.

        Returns:
            Its output; a tuple if there are several. Torch tensors if the inputs are, else NumPy arrays.

        Raises:
            FleetError: An input has another shape or type, or there are more or fewer.
        """
        import numpy as np

        inputs = tuple(value if _is_torch(value) else np.asarray(value) for value in inputs)
        try:
            outputs = self._main(*map(self._tensor, inputs))
        except Exception as error:
            raise FleetError(f"{self.path.name}: {_fault(error, inputs)}") from None
        if any(map(_is_torch, inputs)):
            from torch.utils.dlpack import from_dlpack

            arrays = list(map(from_dlpack, tvm_tensors(outputs)))
        else:
            arrays = tvm_arrays(outputs)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _tensor(self, value: Array) -> Any:
        import tvm

        if not _is_torch(value):
            return tvm.runtime.tensor(value, self._device)
        tensor: Any = value
        tensor = tensor.detach().contiguous()
        is_cuda = self._device.dlpack_device_type() != tvm.cpu().dlpack_device_type()
        tensor = tensor.to(f"cuda:{self._device.index}" if is_cuda else "cpu")
        if tensor.data_ptr() % _ALIGNMENT:
            tensor = tensor.clone()
        return tvm.runtime.from_dlpack(tensor)


def load_library(
    path: str | Path, *, gpu_index: int | None = None, threads: int | None = None
) -> NetworkLibrary:
    """Load the library that `fleet tune` made of a network.

    Args:
        path: The `.so` file.
        gpu_index: Ordinal of the CUDA device that it was made for; None if it was made for a CPU.
        threads: Threads that it runs with, for all libraries of this process; None leaves TVM's own choice,
            which is every core, or `TVM_NUM_THREADS`.

    Raises:
        FleetError: There is no such file, or it is no library of a network for this host.
    """
    path = Path(path)
    if not path.is_file():
        raise FleetError(f"{path}: there is no such library; `fleet tune DEVICE NETWORK` makes one")
    return NetworkLibrary(path.absolute(), gpu_index, threads)


def _is_torch(value: Array) -> bool:
    """Whether a value is a torch tensor; torch need not be there to tell."""
    return hasattr(value, "data_ptr")


def _fault(error: Exception, inputs: tuple[Array, ...]) -> str:
    """Say in one line what TVM found wrong with the inputs."""
    if misfit := _MISFIT.search(str(error)):
        place, name, shape, dtype = misfit.groups()
        value = inputs[int(place)]
        given_tensor = f"{str(value.dtype).removeprefix('torch.')} ({', '.join(map(str, value.shape))})"
        return f"input {place} ({name}) is {given_tensor}, expected {dtype} ({shape})"
    if count := _COUNT.search(str(error)):
        return f"got {len(inputs)} inputs, expected {count[1]}: {count[2]}"
    return first_line(error)
