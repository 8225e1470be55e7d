"""Import TVM's tensor intrinsics without the twenty seconds that the plain import costs.

Every `TuneContext` of TVM 0.27 imports `tvm.s_tir.tensor_intrin`, which parses some 250 TVMScript
functions. For each one the parser calls `inspect.stack()` twice, and that call looks up the source file
of every frame by walking all loaded modules: 20 s on a 2.6 GHz core, and more under a deep stack. The
parser itself only looks at frames and, at most, at the source line of the third one. Most of the functions
are of tensor cores, which no design space of a CPU has. `docs/decisions` tells the measurement. Called
before a design space is drawn from or a network is compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agents.devices import Family

_PACKAGE = "tvm.s_tir.tensor_intrin"
#: Modules of the package with the intrinsics of each family's design spaces.
_MODULES = {
    Family.CPU: (f"{_PACKAGE}.arm_cpu", f"{_PACKAGE}.x86"),
    Family.GPU: (f"{_PACKAGE}.cuda",),
}
#: TVM's parser reads the source line of frame 2 at most (`is_defined_in_class`).
_FRAMES_WITH_SOURCE = 4


def _light_stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Stand in for `inspect.stack`: the same frames, source lines only where TVM's parser looks."""
    del context  # the signature of inspect.stack; one line of source is always enough here
    frames: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        lines = None
        if len(frames) < _FRAMES_WITH_SOURCE and not code.co_filename.startswith("<"):
            lines = [linecache.getline(code.co_filename, frame.f_lineno)]
        frames.append(
            inspect.FrameInfo(
                frame, code.co_filename, frame.f_lineno, code.co_name, lines, 0 if lines else None
            )
        )
        frame = frame.f_back
    return frames


@contextmanager
def _light_inspection() -> Iterator[None]:
    original = inspect.stack
    inspect.stack = _light_stack
    try:
        yield
    finally:
        inspect.stack = original


def load_tensor_intrinsics(family: Family) -> None:
    """Import what `tvm.s_tir.tensor_intrin` has for a family, once for this process.

    The package is there afterwards without having run, so that a `TuneContext` finds it. Its other modules
    are imported when they are named.
    """
    missing = [name for name in _MODULES[family] if name not in sys.modules]
    if not missing:
        return
    if _PACKAGE not in sys.modules:
        import tvm.s_tir  # the package itself, before its parser is sped up

        spec = importlib.util.find_spec(_PACKAGE)
        assert spec is not None
        package = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        tvm.s_tir.tensor_intrin = package
    with _light_inspection():
        for name in missing:
            importlib.import_module(name)
