"""Additions that CONTRIBUTING describes: a toy of each, in a copy of the packages, in the files it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import ROOT
from tests.table_fixtures import rows

GREET = '''"""A greeting: a toy of a request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from fleet.core.words import RequestKind
from fleet.requests.request_kind import Flag, RequestArguments


class Greet(RequestArguments, frozen=True, kw_only=True):
    """Greet somebody."""

    kind: ClassVar = RequestKind.GREETING
    needs_engine: ClassVar = False

    name: Annotated[str, Flag("NAME"), Meta(max_length=8, description="Whom to greet.")]

    def perform(self, work: Any, session: Any, display: Any) -> dict[str, Any]:
        return {"said": f"hello {self.name}"}
'''

GUESS = '''"""A toy of a strategy: the source model's heads as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transfer.adapt.nearest import Nearest


@dataclass(frozen=True, slots=True)
class Guess:
    name: str = "guess"
    least_samples: int = 0

    def adapt(self, task: Any) -> Any:
        return Nearest().adapt(task)
'''

#: Runs in the copy, and prints what it finds of each.
LOOK = """
import json
from pathlib import Path
from agents.device.device_cores import agent_cores, worker_settings
from agents.host.device_kinds import KINDS, environment_id
from agents.host.probe import environment, probe
from agents.records import Protocol
from fleet.config.device_files import load_device
from fleet.config.settings import FleetConfig
from fleet.core.words import Request, RequestKind
from fleet.requests.kinds import check_request, parse_request, read_arguments
from fleet.requests.request_kind import KnownFleet, RequestRefused
from fleet.store.store import Store
from transfer.adapt.guard import NAMES, strategies
from transfer.features.extractor import Extractor

fleet = KnownFleet(families={}, trains=False)
body = lambda name: json.dumps({"id": "g", "kind": "greeting", "arguments": {"name": name}}).encode()
request = check_request(parse_request(body("box")), fleet, ())
try:
    check_request(parse_request(body("far too long")), fleet, ())
except RequestRefused as error:
    refusal = str(error)

store = Store.read(Path("store"))
records = sorted(store.records(), key=lambda record: min(record.run_secs))
workloads = store.workloads()
steps = Extractor().read(records[0], workloads[records[0].workload_id])

spec, host = load_device(Path("hardware"), "loud"), probe()
kind = KINDS[spec.kind]
[settings, *_] = worker_settings(spec, kind.describe(spec, host), host.usable_cores)
print(json.dumps({
    "said": read_arguments(request.kind, request.arguments).perform(None, None, None),
    "has_driver": request.kind.has_driver,
    "refusal": refusal,
    "strategy": strategies()["guess"].name,
    "listed": "guess" in NAMES,
    "setting": FleetConfig.model_validate({"onboarding": {"strategy": "guess"}}).onboarding.strategy,
    "records": [[record.dialect, record.trace, record.run_secs] for record in records],
    "workloads": [workload.operator for workload in workloads.values()],
    "family": store.devices()["gfx908"].spec.family,
    "steps": [step.names[0] for step in steps],
    "contradictions": kind.differences(spec, host),
    "lock": settings.lock_path.rsplit("/", 1)[1],
    "cores": agent_cores(spec, [spec], (0, 1), ((0,), (1,))) == (0, 1),
    "environment": len(environment_id(environment(spec.cores), spec, Protocol())),
}))
"""

#: Lines of a log in a form of its own: a problem, and the milliseconds of each solver. The last is none.
FIND_DB = """\
conv 64-28-28-3x3-128-28-28-32-1x1-NCHW-FP32-F=ConvBinWinograd3x3U:0.0814,0,x;ConvOclDirectFwd:0.3192,0,x
conv 64-56-56-1x1-64-56-56-32-0x0-NCHW-FP32-F=ConvAsm1x1U:0.05128,0,x;ConvBroken:soon,0,x
conv 64-56-56 without a solver
"""

SOLVERS = '''"""Solvers of a library: a trace is the name of one."""

from __future__ import annotations

from agents.records import Workload
from transfer.language.primitives import Kind, Primitive


class SolverReader:
    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        return (Primitive(Kind.AN, (-1, 1), (trace.strip('"'), "", "none")),)
'''

TOY_LOGS = '''"""Logs of a library of solvers: `conv PROBLEM=SOLVER:ms,workspace,algorithm;...` a line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from agents.records import canonical_json
from fleet.interchange.logs.catalog import Catalog, LoggedWorkload, Measurement, checked_trace, key_id
from fleet.interchange.logs.catalog import FileFormat
from fleet.interchange.logs.json_values import Rejected, careful
from fleet.interchange.logs.knobs import timed
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.operators import Operator
from fleet.interchange.logs.targets import Machine, parse_target

DIALECT = "solvers"


def _read(lines: LogLines, catalog: Catalog) -> Iterator[Measurement | Rejected]:
    for line in lines:
        problem, _, solvers = bytes(line).decode("ascii", "replace").partition("=")
        for solver in solvers.split(";"):
            try:
                yield careful(_measurement, catalog, problem, solver)
            except Rejected as reason:
                yield reason


def _measurement(catalog: Catalog, problem: str, solver: str) -> Measurement:
    name, _, timing = solver.partition(":")
    if not re.fullmatch(r"[0-9.]{1,20}", millis := timing.partition(",")[0]):
        raise Rejected("a solver has no time", solver[:60])
    workload = catalog.workload(
        problem,
        lambda: LoggedWorkload.of(
            DIALECT,
            key_id(DIALECT, problem),
            problem,
            Operator("C2D"),
            canonical_json({"dialect": DIALECT, "problem": problem}),
        ),
    )
    target = {"kind": "rocm"}
    environment = catalog.environment(
        DIALECT, lambda: ({"imported": DIALECT, "target": target}, Machine(parse_target(target)))
    )
    return Measurement(workload, environment, checked_trace(name), timed([float(millis)]))


def _is_head(line: bytes) -> bool:
    return re.match(rb"conv [0-9x-]+-NCHW-[^=]*=[A-Za-z0-9]+:", line) is not None


FORMATS = (FileFormat(tool="Solvers", dialect=DIALECT, read=_read, is_head=_is_head),)
'''

#: A card beside the host's CPU, which only one program may use at a time.
CARD = '''class CardDevice(HostDevice):
    """A card of its own lock that runs what LLVM makes."""

    targets: ClassVar[Mapping[Family, str]] = {Family.CPU: "llvm"}

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """See `HostDevice.differences`."""
        return [f"no card in {descriptor.arch}"]

    def lock_name(self, spec: DeviceSpec) -> str | None:
        """See `HostDevice.lock_name`."""
        return f"card-{spec.threads}"


'''

LOUD = """
schema: 1
device_id: loud
kind: card
family: cpu
target: {kind: llvm, num-cores: 1}
"""


def insert(path: Path, before: str, text: str) -> None:
    """Put some text before another, which the file has once."""
    whole = path.read_text()
    assert whole.count(before) == 1, (path, before)
    path.write_text(whole.replace(before, text + before))


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the packages does with a toy of each."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("agents", "fleet", "transfer"):
        ignored = shutil.ignore_patterns("__pycache__", "shipped", "static")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / "fleet/requests/greet.py").write_text(GREET)
    kinds = folder / "fleet/requests/kinds.py"
    insert(kinds, "from fleet.requests.import_logs", "from fleet.requests.greet import Greet\n")
    insert(kinds, "Collect, Evaluate", "Greet, ")
    insert(
        folder / "fleet/core/words.py",
        "    @property\n    def has_driver",
        '    GREETING = "greeting"\n\n',
    )
    (folder / "transfer/adapt/guess.py").write_text(GUESS)
    registry = folder / "transfer/adapt/guard.py"
    insert(registry, "from transfer.adapt.maml", "from transfer.adapt.guess import Guess\n")
    insert(registry, "        Scratch(),", "        Guess(),\n")
    insert(folder / "fleet/config/choices.py", '    "scratch",', '    "guess",\n')
    (folder / "transfer/language/solvers.py").write_text(SOLVERS)
    dialects = folder / "transfer/language/dialects.py"
    insert(dialects, "\n#: What makes a reader", "from transfer.language.solvers import SolverReader\n")
    insert(dialects, '    "knobs"', '    "solvers": SolverReader,\n')
    (folder / "fleet/interchange/dialects/solvers.py").write_text(TOY_LOGS)
    insert(folder / "agents/devices.py", '    REPLAY = "replay"', '    CARD = "card"\n')
    kinds = folder / "agents/host/device_kinds.py"
    insert(kinds, "#: What each kind of device does", CARD)
    insert(kinds, "    DeviceKind.RPC:", "    DeviceKind.CARD: CardDevice(),\n")
    (folder / "gfx908.solvers.txt").write_text(FIND_DB)
    (folder / "hardware").mkdir()
    (folder / "hardware/loud.yaml").write_text(LOUD)
    options = ["--device", "gfx908", "--store", "store", "--json"]
    imported = json.loads(_run(folder, "-m", "fleet.cli", "import", "gfx908.solvers.txt", *options))
    found = json.loads(_run(folder, "-c", LOOK))
    return found | {"import": imported}


def _run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_kind_of_request_is_added_in_three_files(looked: dict[str, Any]) -> None:
    assert looked["said"] == {"said": "hello box"}
    assert looked["has_driver"] is True
    assert looked["refusal"] == "greeting: name: expected `str` of length <= 8, got 'far too long'"


def test_a_strategy_is_added_in_three_files(looked: dict[str, Any]) -> None:
    assert (looked["strategy"], looked["listed"], looked["setting"]) == ("guess", True, "guess")


def test_a_dialect_is_added_in_three_files(looked: dict[str, Any]) -> None:
    report = looked["import"]
    assert (report["imported"], report["dialects"], report["unaccounted_lines"]) == (3, {"solvers": 3}, 0)
    assert report["rejected_by_reason"] == {"a solver has no time": 2}
    assert looked["records"] == [
        ["solvers", '"ConvAsm1x1U"', [5.128e-05]],
        ["solvers", '"ConvBinWinograd3x3U"', [8.14e-05]],
        ["solvers", '"ConvOclDirectFwd"', [0.0003192]],
    ]
    assert (looked["workloads"], looked["family"]) == (["C2D", "C2D"], "gpu")
    assert looked["steps"] == ["ConvAsm1x1U"]


def test_a_kind_of_device_is_added_in_three_files(looked: dict[str, Any]) -> None:
    (contradiction,) = looked["contradictions"]
    assert contradiction.startswith("no card in ")
    assert looked["lock"] == "tensor-fleet-timing-card-1.lock"
    assert (looked["cores"], looked["environment"]) == (True, 32)


@pytest.mark.parametrize(
    ("heading", "files"),
    rows("""
        dialect         -> transfer/language/ transfer/language/dialects.py fleet/interchange/dialects/
        kind of device  -> agents/devices.py agents/host/device_kinds.py fleet/config/device_files.py
        kind of request -> fleet/requests/ fleet/requests/kinds.py fleet/core/words.py
        strategy        -> transfer/adapt/ transfer/adapt/guard.py fleet/config/choices.py
    """),
)
def test_contributing_names_the_files_that_the_toys_took(heading: str, files: str) -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"## Add a {heading}")[1].split("\n## ")[0]
    named = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    product = [name for name in named if not name.startswith(("docs/", "tests/"))]
    assert all(name.startswith(file) for name, file in zip(product, files.split(), strict=True))
