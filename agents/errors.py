"""Errors of the agents package: one root, so a caller can catch all of them."""

from __future__ import annotations

import itertools

#: First words of the lines behind which torch only says where in a graph it was, and how to learn more.
_TORCH_CONTEXT = (
    "While executing %",
    "Use tlparse to see",
    "from user code:",
    "Set TORCHDYNAMO_VERBOSE=1",
    "For more information, run with TORCH_LOGS",
    "For more debugging help, see",
    "The above exception was the direct cause",
)


class AgentError(RuntimeError):
    """A failure of the measuring program itself (a failed candidate is a record instead).

    The message says what failed, where, what was found and expected, and what to do next.
    """


def first_line(error: BaseException) -> str:
    """What an error says first, cut to some characters; its kind where it says nothing."""
    return _lines(error)[0][:300]


def last_line(error: BaseException, most: int | None = 300) -> str:
    """What an error says last: TVM, Ray and compilers put the reason behind their own stack."""
    return _lines(error)[-1][:most]


def _lines(error: BaseException) -> list[str]:
    """What it says, less what torch says behind its reasons: where it was, and how to learn more."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = list(itertools.takewhile(lambda line: not line.startswith(_TORCH_CONTEXT), lines))
    return said or lines or [type(error).__name__]


class WorkerStartError(AgentError):
    """A worker process did not get as far as its first job: the host's doing, no candidate's."""


class MessageError(AgentError):
    """A worker process sent no message that a sound one sends: a candidate may have damaged its memory."""


class LayoutError(AgentError):
    """A file is of another version than the one that this program reads."""


class SpoolError(AgentError):
    """The spool is damaged or in use; the message names file and offset."""


class SpoolFull(SpoolError):  # noqa: N818 - a state of the disk, named so
    """The spool has no room: nothing of the refused records was kept, those kept before are safe."""
