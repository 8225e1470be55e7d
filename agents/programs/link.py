"""Where the programs of a device run, as seen from a worker process: in it, or behind a wire.

`child.py` times through a `Link` and does not know which one it has. `LocalLink` is here;
`agents.programs.rpc_session` has the one over TVM's RPC tracker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from agents.errors import AgentError


class LinkLostError(AgentError):
    """The device cannot be reached at all; no candidate is to blame."""


#: Added by TVM to the number of a kind of device that lies behind a wire (`tvm.rpc.base.RPC_SESS_MASK`).
REMOTE_MASK = 128


def is_remote(device: Any) -> bool:
    """Whether a TVM device lies behind a wire."""
    return bool(device.dlpack_device_type() >= REMOTE_MASK)


class Session(Protocol):
    """Exclusive use of a device for one candidate."""

    #: TVM device that arguments live on (`tvm.runtime.Device`, remote or not).
    device: Any

    def load(self, module: Any) -> Any:
        """Bring a compiled `tvm.runtime.Module` to the device; returns the module to call there."""

    def alive(self) -> bool:
        """Whether the device still answers; asked after a program failed to tell whose fault it was."""


class Link(Protocol):
    """The way to a device."""

    def connect(self) -> AbstractContextManager[Session]:
        """Wait for exclusive use of the device.

        Raises:
            LinkLostError: The device does not come free, or is not there.
        """


class LocalLink:
    """The CPU of this host, or one of its CUDA devices; its own session, for there is nothing to open."""

    def __init__(self, device: Any) -> None:
        self.device = device

    @contextmanager
    def connect(self) -> Iterator[LocalLink]:
        """See `Link.connect`; the host's timing lock, held by the caller, makes the use exclusive."""
        try:
            self.device.sync()
        except Exception as error:
            raise LinkLostError(f"the device of this host does not answer: {error}") from error
        yield self

    def load(self, module: Any) -> Any:
        """See `Session.load`; programs are called where they were made."""
        return module

    def alive(self) -> bool:
        """See `Session.alive`; after a fault on a GPU nothing runs any more in this process's context."""
        try:
            self.device.sync()
        except Exception:  # whatever TVM makes of the driver's error
            return False
        return True
