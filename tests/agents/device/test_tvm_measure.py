"""TVM's own searches with our builder, our runner and a head: the lines of the documents, run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceSpec
from tests.conftest import run_code
from tests.host_fixtures import write_generic_device

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.tvm, pytest.mark.slow]
#: TVM's own search with a small population: drawing it takes most of its time.
_SMALL = (
    "ms.search_strategy.EvolutionarySearch(population_size=32, init_min_unmeasured=8, genetic_num_iters=1)"
)


@pytest.mark.timeout(240)
def test_tune_tir_searches_with_our_builder_and_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_generic_device(Path("configs/hardware"))
    [lines] = re.findall(
        r"```python\n(import fleet.*?)```", (ROOT / "docs/use-a-head.md").read_text(), re.DOTALL
    )
    for theirs, mine in (
        ('"x86-64-v3"', '"generic"'),
        ('"work", 64', f'"work", 8, strategy={_SMALL}'),
        ("ms.tune_tir", "found = ms.tune_tir"),
    ):
        assert lines.count(theirs) == 1
        lines = lines.replace(theirs, mine)
    before = (
        "import tvm\nfrom agents.programs.workloads import operator_workload\n"
        "module = tvm.ir.load_json(operator_workload('GMM', (1, 32, 32, 32)).module_json)\n"
        "target = tvm.target.Target({'kind': 'llvm', 'num-cores': 1})\n"
        # The slow import of TVM's intrinsics looks up the source of every frame some thousand times.
        "import inspect\nstack, slow = inspect.stack, []\n"
        "inspect.stack = lambda *how, **more: slow.append(1) or stack(*how, **more)\n"
    )
    after = (
        "assert len(slow) < 50, len(slow)\n"
        "print([float(secs) for one in found.get_all_tuning_records() for secs in one.run_secs])\n"
    )
    # A search of TVM leaves loggers behind that the next search in the same process stumbles over.
    measured = json.loads(run_code(f"{before}{lines}\n{after}", timeout=None).splitlines()[-1])
    assert len(measured) >= 8
    assert all(0 < secs < 1 for secs in measured)


@pytest.mark.timeout(120)
def test_a_program_that_does_not_compile_fails_alone(generic_spec: DeviceSpec) -> None:
    import tvm
    from tvm import te, tirx
    from tvm.s_tir import meta_schedule as ms

    from agents.device.tvm_measure import tvm_measure
    from agents.programs.workloads import operator_workload

    def program(extern: str) -> Any:
        a = te.placeholder((4,), name="a")
        call = lambda i: tirx.call_extern("float32", extern, a[i])  # noqa: E731
        return tvm.IRModule({"main": te.create_prim_func([a, te.compute((4,), call, name="b")])})

    good = tvm.ir.load_json(operator_workload("GMM", (1, 16, 16, 16)).module_json)
    with tvm_measure(generic_spec) as ours:
        target = tvm.target.Target(generic_spec.target)
        inputs = [ms.builder.BuilderInput(one, target) for one in (good, program("no_such_function"), good)]
        built = ours.builder.build(inputs)
        args = ms.arg_info.ArgInfo.from_prim_func(good["main"])
        runs = [ms.runner.RunnerInput(one.artifact_path, "cpu", args) for one in built]
        first, broken, same = [future.result() for future in ours.runner.run(runs)]
    assert [float(one) for one in first.run_secs] == [float(one) for one in same.run_secs]
    assert broken.run_secs is None
    assert str(broken.error_msg)
