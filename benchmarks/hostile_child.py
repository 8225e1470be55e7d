"""A child process that takes hostile cases through their stages and tells how each went.

Started by `benchmarks.hostile_run`, which ends it where a stage takes too long: nothing here can. One JSON
line in is one case and its stages; the lines out are events, one as a stage begins and one as it ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from benchmarks.hostile_cases import case_of
from benchmarks.hostile_folders import FOLDER_STAGES
from benchmarks.hostile_run import own_secs
from benchmarks.hostile_stages import STAGES, TYPED, Unaccounted, Work, counts_of
from fleet.json_types import JsonDict


def peak_mb() -> float:
    """Most memory that this process held since `forget_peak`, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def started_peak_mb() -> float:
    """Most memory of a process that this one ever started and that has ended, in MiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def forget_peak() -> None:
    """Give back what is free and start the peak anew, so that one case does not answer for another."""
    gc.collect()
    pa.default_memory_pool().release_unused()  # a bomb takes memory to make
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def where(error: BaseException) -> str:
    """Kind of an error, and the deepest line of this project that it came through."""
    root = str(Path(__file__).resolve().parents[1])
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(root)]
    place = f"{frames[-1].filename[len(root) + 1 :]}:{frames[-1].name}" if frames else "elsewhere"
    return f"{type(error).__name__} in {place}"


def run_stage(name: str, run: Callable[[Work], None], work: Work) -> JsonDict:
    """Take a case through one stage, which is the function `run`.

    Returns:
        How it ended (`ok`, `refused`, `crash`, `unaccounted`), what was raised, seconds and memory.
    """
    forget_peak()
    started_before_mb = started_peak_mb()
    began, cpu = own_secs(os.getpid()), time.process_time()
    ended, text, kind = "ok", "", ""
    try:
        run(work)
        if name in work.refusals:
            ended, text = "refused", work.refusals[name]
    except TYPED as refusal:
        ended, text = "refused", str(refusal)
    except Unaccounted as fault:
        ended, text, kind = "unaccounted", str(fault), "Unaccounted"
    except Exception as error:
        ended, kind = "crash", where(error)
        text = "".join(traceback.format_exception(error, limit=-6))[-2000:]
    started_mb = started_peak_mb()
    # The kernel never forgets that peak: an earlier case has it, unless it has risen.
    most_mb = max(peak_mb(), started_mb if started_mb > started_before_mb else 0.0)
    return {
        "ended": name,
        "how": ended,
        "kind": kind,
        "text": text[:2000],
        "secs": round(own_secs(os.getpid()) - began, 3),
        "cpu_secs": round(time.process_time() - cpu, 3),
        "peak_mb": round(most_mb, 1),
    }


def serve(asked: TextIO, events: TextIO, stages: Mapping[str, Callable[[Work], None]]) -> None:
    """Answer until nothing more is asked."""

    def tell(event: JsonDict) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    for line in asked:
        question = json.loads(line)
        tell({"began": "making"})
        case = case_of(question["case"], question["seed"], question["markers"])
        folder = Path(tempfile.mkdtemp(dir=question["folder"]))
        work = Work(case, folder)
        try:
            os.chdir(folder)
            case.write(work.logs)
            for name in question["stages"]:
                tell({"began": name})
                told = run_stage(name, stages[name], work)
                tell(told)
                # Without a store there is nothing further to read.
                if name == "import" and not work.store.exists():
                    break
        finally:
            os.chdir(question["folder"])
            shutil.rmtree(folder, ignore_errors=True)
        tell({"done": case.name, "dialect": case.dialect, "form": case.form, **counts_of(work)})


def main(stages: Mapping[str, Callable[[Work], None]] = STAGES | FOLDER_STAGES) -> None:
    """Keep standard output for events: what the program prints goes to standard error.

    Args:
        stages: By name, what a case goes through.
    """
    faulthandler.enable()
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, events, stages)


if __name__ == "__main__":
    main()
