"""A visit to a GPU, as far as a host without one goes: code generation, figures, and which parts are done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceKind, Family, Outcome
from benchmarks import gpu_visit
from benchmarks.gpu_visit import Options, measure, of_moments, product_figures
from fleet.config.init import Profile
from tests.conftest import run_code
from tests.host_fixtures import cuda_spec
from tests.record_fixtures import make_record, make_spec
from tests.scenario_fixtures import check_facts

TARGET = cuda_spec(arch="sm_90").target_json
CARD = {"index": "0", "name": "A GPU", "arch": "sm_80", "compute_units": "108", "clock_max_mhz": "1410"}
TENSORIZED = json.dumps([[["Tensorize", ["b0"], ["wmma_sync_16x16x16_f16f16f32", True], []]], []])


def test_a_host_without_a_gpu_skips_the_visit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_visit, "cuda_devices", lambda: ())
    gpu_visit.main([])
    assert "| `skipped` | this host shows no NVIDIA GPU" in capsys.readouterr().out
    gpu_visit.main(["--quick", "--json"])
    assert json.loads(capsys.readouterr().out)["skipped"]


#: Of a network's product, in a process of its own: what TVM compiles CUDA with is replaced for good. Prints
#: for each candidate, and for TVM's default schedule: whether its trace and its source use tensor cores.
_PROGRAM = """
import json, sys
from pathlib import Path
import tvm, tvm_ffi
from agents.networks.graph import lowered, workloads_of
from agents.networks.network_name import read_network_name
from agents.networks.sources import load
from agents.programs.build import build
from agents.programs.design_space import DesignSpace
from agents.programs.workloads import own_module
from agents.records import Family
from benchmarks.gpu_visit import default_module, has_tensor_cores, name_of, save_products, uses_tensor_cores

tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda source, *_: source, override=True)
text = str(save_products(["bert-linear"], Path(sys.argv[1])))
[workload] = workloads_of(lowered(load(read_network_name(text)), Family.GPU), Family.GPU, text)
assert name_of(workload.arg_shapes[-1]) == "bert-linear"
drawn = DesignSpace(workload, Family.GPU).sample(2, seed=1).candidates
seen = []
for arch in ("sm_80", "sm_90"):
    target = tvm.target.Target({**json.loads(sys.argv[2]), "arch": arch})
    for candidate in drawn:
        source = build(own_module(workload), candidate.trace, target).module.imports[0].inspect_source()
        seen.append([uses_tensor_cores(candidate.trace), has_tensor_cores(source)])
default = default_module(workload, target).imports[0].inspect_source()
print(json.dumps([seen, has_tensor_cores(default)]))
"""


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_candidates_of_a_float16_product_use_tensor_cores(tmp_path: Path) -> None:
    printed = run_code(_PROGRAM, tmp_path / "products.pt2", TARGET, timeout=580)
    seen, is_default = json.loads(printed.splitlines()[-1])
    assert seen == [[True, True]] * 4
    assert is_default


def test_the_best_with_and_without_tensor_cores_stand_beside_the_rivals() -> None:
    ran = {"outcome": Outcome.OK, "run_secs": (2e-3, 1e-3)}
    records = [
        make_record(1, trace=TENSORIZED, **ran),
        make_record(1, trace=TENSORIZED, attempt=1, outcome=Outcome.OK, run_secs=(5e-4,)),
        make_record(2, trace=json.dumps([[], []]), **ran),
        make_record(4, trace=json.dumps([[["EnterPostproc", [], [], []]], []])),
    ]
    rivals = {"secs": {"torch": 2.5e-4, "tvm_default": 1e-3}, "absent": {}, "default_uses_tensor_cores": True}
    figures = product_figures(records, rivals, 1e9, 1e13)
    facts = """
        candidates = 3
        with_tensor_cores = 1
        ran = 2
        best_secs = {tensor_cores: 5.0e-4, no_tensor_cores: 1.0e-3, torch: 2.5e-4, tvm_default: 1.0e-3}
        speedup_vs_torch = 0.5
        speedup_vs_tvm_default = 2.0
        share_of_peak.tensor_cores about 0.2
    """
    check_facts(figures, facts)
    assert "speedup_vs_torch" not in product_figures([], rivals, 1e9, None)


def test_moments_become_levels_and_reasons() -> None:
    moments = [
        {"sm_clock_mhz": 1980, "throttle_reasons": []},
        {"sm_clock_mhz": 1700, "throttle_reasons": ["sw_power_cap"]},
        {"sm_clock_mhz": 1900, "temperature_c": 60, "throttle_reasons": ["sw_power_cap"]},
    ]
    assert of_moments(moments) == {
        "moments": 3,
        "sm_clock_mhz": [1700, 1900, 1980],
        "temperature_c": [60, 60, 60],
        "throttle_reasons": {"sw_power_cap": 2},
    }


def test_a_part_that_fails_is_done_again_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"kind": DeviceKind.CUDA, "family": Family.GPU, "index": 0, "cores": (0,)}
    spec = make_spec("cuda-0", target_json=TARGET, **kind)
    done = []
    fails = {"b"}

    def does(*arguments: Any) -> dict[str, Any]:
        *_, what, _folder, minutes = arguments
        done.append(what)
        assert 0 <= minutes < 8
        if what in fails:
            raise RuntimeError("no memory\nlines of a trace")
        return {"latency_secs": {"tvm_tuned": 1e-3}}

    def products(*arguments: Any) -> dict[str, Any]:
        return does("products", *arguments[-2:])

    fakes = {
        "why_skipped": lambda: "",
        "cuda_devices": lambda: (CARD,),
        "host_profiles": lambda: (Profile(spec=spec, header=()),),
        "gpu_state": lambda index: {"sm_clock_mhz": 1410},
        "_products": products,
        "_tuned": does,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(gpu_visit, name, fake)
    options = Options(network=("a", "b"), keep=tmp_path)
    first = measure(options)
    assert first["networks"]["b"] == {"why_not": "no memory"}
    assert first["products"]["gpu"]["after"] == {"sm_clock_mhz": 1410}
    assert first["tensor_peak_flops"] == pytest.approx(312e12, rel=1e-3)
    fails.clear()
    second = measure(options)
    assert done == ["products", "a", "b", "b"]
    assert second["networks"]["a"] == first["networks"]["a"]
    assert second["networks"]["b"]["latency_secs"] == {"tvm_tuned": 1e-3}
