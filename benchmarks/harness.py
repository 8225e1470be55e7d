"""What every benchmark has in common: its command line, its JSON, its folder, and turns.

A benchmark declares its options as a frozen dataclass, whose fields hold the help and the bounds::

    @dataclass(frozen=True)
    class Options:
        workloads: int = option(24, "workloads to measure", least=1)

    main = benchmark("collection", __doc__, Options, measure)

`measure` gets the options and returns what is printed, rounded, as one JSON object, beside the name of the
benchmark and the seconds that it took: on one line with `--json`, indented without it. A benchmark that is a
gate also says which results fail, which ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import reduce
from operator import getitem
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from agents.files import write_durably
from agents.host.process_control import environment
from fleet.errors import FleetError
from transfer.errors import TransferError
from transfer.processes import run_each

if TYPE_CHECKING:
    from agents.device.replay import Worker
    from agents.records import Candidate, CandidateId, Workload

Figures = dict[str, Any]
Chosen = TypeVar("Chosen")
Item = TypeVar("Item")

#: Run in a process of its own: a fresh one has nothing of a store in its memory. `ru_maxrss` would not
#: do: a child inherits its parent's.
_CHILD = """
import json, os, pathlib, sys, time
from fleet.store.store import Store
def memory():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines
            if line.startswith(("VmHWM", "RssAnon", "VmRSS"))}
before = memory()
wall, cpu = time.perf_counter(), time.process_time()
%(work)s
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
after = memory()
print(json.dumps({"secs": round(wall, 4), "cpu_secs": round(cpu, 4),
                  "own_mb": round(after["RssAnon"] - before["RssAnon"], 1),
                  "peak_mb": round(after["VmHWM"] - before["VmRSS"], 1), **found}), flush=True)
os._exit(0)  # as a kill ends it: a thread may be reading what was left open
"""


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    least: float | None = None,
    choices: Sequence[str] | None = None,
    may_be_empty: bool = False,
    quick: object = None,
) -> Any:
    """A field of a benchmark's options, and how it is given on the command line.

    Several values follow the option's name, or each its name again.

    Args:
        default: Its value where it is not given; without a default it must be given.
        help: What it means; the default is added to it.
        least: Smallest number that is allowed.
        choices: Values that are allowed, of each item where there are several.
        may_be_empty: Of several values: none are allowed too.
        quick: Value with `--quick`, where nothing else is given.
    """
    about = {
        "help": help.replace("%", "%%"),
        "least": least,
        "choices": choices,
        "may_be_empty": may_be_empty,
        "quick": quick,
    }
    return field(default=default, metadata=about)


def benchmark(
    name: str,
    description: str | None,
    options: type[Chosen],
    measure: Callable[[Chosen], Figures],
    *,
    fails: Callable[[Figures], object] = lambda _: False,
    table: Callable[[Figures], Iterable[str]] = lambda _: (),
) -> Callable[..., None]:
    """The entry point of a benchmark.

    Args:
        name: Of its module.
        description: The module's docstring.
        options: Frozen dataclass of its options.
        measure: Does the work.
        fails: Whether a result ends the program with exit code 1.
        table: Lines that people read in place of the JSON, where there are some.

    Returns:
        What the command line calls; arguments may be given in its place.
    """

    def main(arguments: Sequence[str] | None = None) -> None:
        parser = parser_of(name, description, options)
        parsed = vars(parser.parse_args(arguments))
        is_json, began = parsed.pop("json"), time.monotonic()
        try:
            found = measure(options(**_chosen(options, parsed)))
        except (FleetError, TransferError) as error:  # for instance no such store, or a damaged one
            raise SystemExit(str(error)) from error
        result = rounded({"benchmark": name, "secs": time.monotonic() - began} | found)
        lines = [] if is_json else list(table(result))
        print("\n".join(lines) or json.dumps(result, indent=None if is_json else 2))
        if fails(result):
            sys.exit(1)

    return main


def say(text: str) -> None:
    """Tell people how far a benchmark is."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def rounded(value: Any) -> Any:
    """A result whose floats have four digits: below 1 four that count, else four behind the point."""
    if isinstance(value, float):
        return round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def headlines(found: Figures, paths: Mapping[str, str]) -> Figures:
    """Figures of parts by the names that they have at the top; those of parts that did not run are left out.

    Args:
        found: What the parts gave.
        paths: By name, keys down to the figure, with points between them.
    """
    keys = {name: path.split(".") for name, path in paths.items()}
    return {name: reduce(getitem, way, found) for name, way in keys.items() if way[0] in found}


def _chosen(options: type[Any], parsed: Mapping[str, object]) -> Figures:
    """Values of the fields that are not left to the dataclass."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in parsed.items()}
    if not values.get("quick"):
        return values
    quick = {one.name: one.metadata.get("quick") for one in fields(options)}
    return {name: value for name, value in quick.items() if value is not None} | values


def parser_of(name: str, description: str | None, options: type[Any]) -> argparse.ArgumentParser:
    """The parser of a dataclass of options, with `--json`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    hints = get_type_hints(options)
    for one in fields(options):
        _add(parser, one, hints[one.name])
    return parser


def _add(parser: argparse.ArgumentParser, one: Field[Any], kind: Any) -> None:
    about, name = one.metadata, f"--{one.name.replace('_', '-')}"
    if isinstance(kind, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    is_many = get_origin(kind) is tuple
    kind = get_args(kind)[0] if is_many else kind
    text = about.get("help", "")
    if kind is bool:
        parser.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    if one.default not in (MISSING, None, ()):
        text = f"{text} ({one.default})".strip()
    details: Figures = {
        "type": _bounded(kind, about.get("least")),
        "help": text,
        "choices": about.get("choices"),
    }
    if is_many:
        details |= {"action": "extend", "nargs": "*" if about.get("may_be_empty") else "+"}
    # What is not given is left to the dataclass.
    details |= {"required": True} if one.default is MISSING else {"default": argparse.SUPPRESS}
    parser.add_argument(name, **details)


def _bounded(kind: type, least: float | None) -> Callable[[str], object]:
    def parse(text: str) -> object:
        value = kind(text)
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return value

    parse.__name__ = kind.__name__  # argparse names it in its refusals
    return parse


@contextmanager
def working_folder(folder: Path | None = None) -> Iterator[Path]:
    """The folder that is given, made if need be; else a temporary one until the block ends.

    Args:
        folder: What is to be kept, for instance of `--keep`.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as made:
        yield Path(made)


def read_kept(path: Path) -> Figures | None:
    """What was found in an earlier run, from its file; None where it is not there, or damaged."""
    try:
        found: Figures = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def kept(path: Path, make: Callable[[], Figures]) -> Figures:
    """What was found in an earlier run; else it is found now, and the file is there whole."""
    found = read_kept(path)
    if found is None:
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(found).encode())
    return found


def run_kept(
    run: Callable[[Item], Figures], jobs: Mapping[Path, Item], workers: int, *, of: str
) -> Iterator[Figures]:
    """What a function gives for items, in their order; what lies in its file is not done again.

    Args:
        run: What to do; picklable where there are several workers.
        jobs: What to do it with, by the file that keeps what comes of it.
        workers: Most processes.
        of: What the work belongs to, for errors.
    """
    missing = [item for path, item in jobs.items() if read_kept(path) is None]
    made = run_each(run, missing, workers, of=of, pieces="cases")
    for place, path in enumerate(jobs, start=1):
        yield kept(path, lambda: next(made))
        say(f"{place}/{len(jobs)} of {of}")


def child_json(
    command: Sequence[str], *, question: object = None, timeout_secs: float | None = None
) -> Figures:
    """What another Python prints as JSON: memory of one process is not that of another.

    Args:
        command: Arguments of the interpreter.
        question: Sent to its standard input as JSON.
        timeout_secs: How long it may take.
    """
    done = subprocess.run(
        [sys.executable, *command],
        input=None if question is None else json.dumps(question),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_secs,
    )
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code, or None where it had to be ended, and what it printed."""

    code: int | None
    printed: str
    errors: str


def run_bounded(command: Sequence[str], secs: float | None, *, question: str = "") -> Ended:
    """Run a program in a session of its own, and end it with all that it started.

    Args:
        command: What is run.
        secs: How long at most; None for no limit.
        question: Sent to its standard input.
    """
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=errors,
            env=environment(),
            start_new_session=True,
            text=True,
        )
        try:
            process.communicate(question, timeout=secs)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        errors.seek(0)
        return Ended(code, printed.read(), errors.read())


def in_child(work: str, *arguments: str) -> Figures:
    """Run lines of Python that leave a dictionary `found`; add the seconds and the memory they took to it."""
    return child_json(["-c", _CHILD % {"work": work}, *arguments])


def by_turns(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; every other round begins at the other end, so none is always first.

    Args:
        sides: What is timed, by name.
        rounds: How often.
        clock: For instance `time.process_time`, where other processes of the host must not count.
    """
    secs: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides.items())
        for name, side in order if number % 2 == 0 else reversed(order):
            began = clock()
            side()
            secs[name].append(clock() - began)
    return secs


def stopwatch() -> Callable[[], float]:
    """What gives the seconds since now whenever it is called."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def ms_of(name: str, secs: Sequence[float], tail: int = 99) -> Figures:
    """Median, a high percentile and the maximum of some times in milliseconds, under keys of a name.

    Args:
        name: Beginning of the keys, for instance `turn_ms`.
        secs: The times.
        tail: Which percentile.
    """
    percentile = statistics.quantiles(secs, n=100)[tail - 1] if len(secs) > 1 else None
    found = {"median": statistics.median(secs) if secs else None, f"p{tail}": percentile}
    found["max"] = max(secs, default=None)
    return {f"{name}_{key}": None if value is None else 1e3 * value for key, value in found.items()}


def drawn(
    worker: Worker,
    workload: Workload,
    count: int,
    *,
    seed: int = 0,
    parents: Iterable[str] = (),
    exclude: Iterable[CandidateId] = (),
) -> list[Candidate]:
    """Candidates that a device worker draws at random, or near parents (traces)."""
    from agents.device.messages import ProposeRequest

    request = ProposeRequest(
        request_id="",
        workload=workload,
        count=count,
        seed=seed,
        parents=tuple(parents),
        exclude=frozenset(exclude),
    )
    [(_, answer)] = worker.draw([request])
    if isinstance(answer, Exception):
        raise answer
    return list(answer.candidates)
