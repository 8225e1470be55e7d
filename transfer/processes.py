"""Independent pieces of work, here or side by side in processes.

Called by comparisons and curves, whose pieces take seconds to minutes each. Knows nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from os import sched_getaffinity
from typing import TypeVar

from transfer.errors import TransferError

#: Each process gets its own copy of the data: beyond this many candidates there is one process.
_MOST_COPIED = 100_000
#: A process that imports torch takes as long to start as one thread takes to learn from half as many samples.
_WORTH_SAMPLES = 10_000
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def workers_for(candidates: int, passes: int) -> int:
    """How many processes should train and judge models on a dataset; one where starting more costs more.

    Args:
        candidates: Of the dataset.
        passes: How often all pieces together pass over it, such as fits times epochs.
    """
    if candidates > _MOST_COPIED or candidates * passes < _WORTH_SAMPLES:
        return 1
    return len(sched_getaffinity(0))


def run_each(
    run: Callable[[_Item], _Result], items: Sequence[_Item], workers: int, *, of: str, pieces: str
) -> Iterator[_Result]:
    """Results of a function for some items, in their order; what was not begun is dropped with the iterator.

    Args:
        run: What to do; like items and results it must be picklable where there are several workers.
        items: What to do it with.
        workers: Most processes; with one, or one item, all is done here.
        of: What the work belongs to, for errors: "the onboarding curve".
        pieces: What the items are, for errors: "cases".

    Raises:
        TransferError: A process died.
    """
    if workers <= 1 or len(items) <= 1:
        yield from map(run, items)
        return
    with ProcessPoolExecutor(min(workers, len(items)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            raise TransferError(
                f"a worker of {of} died (killed, or out of memory) in one of {len(items)} {pieces}; run it "
                "again with one worker"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
