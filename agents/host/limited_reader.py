"""A file of others, read in a process of its own under a limit of memory: a bomb ends that process alone.

A few bytes of Parquet may stand for gigabytes, and what they stand for is known only by decoding them. So a
module reads such a file here first, all of it: libraries also end their process at some damaged ones. What it
could read within the limit is read again by its caller, in the same way.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from typing import Any

from agents.errors import AgentError
from agents.host.child_process import ChildProcess

#: Bytes of data that the process may hold: with its libraries it stays below 1 GiB.
MOST_BYTES = 768 << 20
#: Plain `malloc`, which fails at the limit with an error, and no threads, each with memory of its own.
_PLAIN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS"), "1")


def read_limited(module: str, *arguments: str) -> Any:
    """What a module finds by `answer` with some arguments, as JSON has it.

    Raises:
        AgentError: What the module refused; or it needed more memory than it may, or ended in another way.
    """
    child = ChildProcess([module, *arguments], variables=_PLAIN | _THREADS)
    child.join()
    try:
        reply = json.loads(child.answer())
    except ValueError:
        raise AgentError(
            f"its reader gave no answer ({child.how_it_ended()}): it is damaged, or takes more than "
            f"{MOST_BYTES >> 20:,} MiB; get the file again"
        ) from None
    if "refused" in reply:
        raise AgentError(reply["refused"])
    return reply["value"]


def answer(read: Callable[[], Any], refusals: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Read within the limit, and write what was found, or why it was refused, for `read_limited`.

    Args:
        read: Gives what JSON can hold.
        refusals: Errors that say in one line why a file is refused.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        reply = {"value": read()}
    except refusals as error:
        reply = {"refused": str(error)}
    except MemoryError:
        reply = {
            "refused": f"more than {MOST_BYTES >> 20:,} MiB are needed to read it: no honest file needs that"
        }
    print(json.dumps(reply))
