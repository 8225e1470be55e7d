"""Ten whole networks against what a user would pick instead: `python -m benchmarks.networks --json`.

`fleet tune` searches each network in an empty store for ten minutes, with the shipped model's head and no
sample. Its library is timed in turn, on the same cores, beside ONNX Runtime, OpenVINO, `torch.compile`, torch
eager and TVM without schedules, each at its best settings in float32. `--rivals-only` searches nothing.
`--tune-relax` lets TVM's `tune_relax` search for as long with our builder and runner, and `--stock-trials`
as it is shipped, until its trials are done. Networks are architectures of real size with random weights, at
batch 1. Needs the extra `networks`; OpenVINO is timed where it is installed. Ten networks take some three
hours on two idle cores, twice as long with `--tune-relax`; `--quick` takes two networks and ten minutes.

With `--keep FOLDER` each network's row is a file, and a stopped run goes on with the next network.

`tune_relax` commits results only after a round of each task, so its rounds are small here. `--check corpus`
searches nothing: it compiles every architecture of the corpus (`networks_corpus.py`).
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from agents.records import DeviceId, DeviceSpec, canonical_json
from benchmarks.harness import Figures, benchmark, kept, option, working_folder
from benchmarks.networks_corpus import check_corpus, tiny_names
from benchmarks.networks_sides import MOST_TRIALS, compare
from benchmarks.tables import sections
from fleet.config.init import Profile, write_profiles
from fleet.config.settings import load_fleet, select_devices
from fleet.json_types import JsonDict

_TINY_BERT: Final = (
    "transformers:bert,hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
)
_SMALL_LLAMA: Final = (
    "transformers:llama,hidden_size=576,num_hidden_layers=30,num_attention_heads=9,num_key_value_heads=3,"
    "intermediate_size=1536,vocab_size=49152,tokens=64"
)
#: The networks, as `fleet tune` takes them: images of 224 x 224, texts of 128 tokens, prefills of 64.
NETWORKS: Final = {
    "mobilenet-v2": "transformers:mobilenet_v2,image_size=224,tf_padding=false",
    "efficientnet-b0": (
        "transformers:efficientnet,image_size=224,width_coefficient=1.0,depth_coefficient=1.0,hidden_dim=1280"
    ),
    "resnet-18": "transformers:resnet,depths=2/2/2/2,hidden_sizes=64/128/256/512,layer_type=basic",
    "resnet-50": "transformers:resnet",
    "convnext-tiny": "transformers:convnext",
    "vit-tiny": "transformers:vit,hidden_size=192,num_attention_heads=3,intermediate_size=768",
    "bert-tiny": _TINY_BERT,
    "bert-base": "transformers:bert",
    "gpt2": "transformers:gpt2,tokens=64",
    "llama-135m": _SMALL_LLAMA,
}
_QUICK: Final = ("mobilenet-v2", "bert-tiny")
#: Ratios that are averaged over the networks; above 1 the library of `fleet tune` is faster, or sooner there.
_RATIOS: Final = (
    *("speedup_vs_onnxruntime", "speedup_vs_openvino", "speedup_vs_torch_compile"),
    *("speedup_vs_best_vendor", "speedup_vs_eager", "speedup_vs_untuned"),
    *("speedup_vs_tune_relax_equal_time", "wall_ratio_vs_stock"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What is tuned, for how long, or what is checked instead."""

    device: str = option("x86-64-v4", "local device of this host, by its id")
    threads: str = option("1", "one, or as many as this process has cores", choices=["1", "all"])
    network: tuple[str, ...] = option((), "only this one", choices=list(NETWORKS))
    minutes: float = option(10.0, "of each search", least=0.1, quick=1.0)
    keep: Path | None = option(None, "folder of finished networks; a stopped run goes on")
    rivals_only: bool = option(False, "search nothing, and time TVM without schedules")
    tune_relax: bool = option(False, "TVM's `tune_relax` searches for as long")
    stock_trials: int = option(
        0, "candidates of `tune_relax` as it is shipped; 0: it does not search", least=0
    )
    quick: bool = option(False, "two networks, and searches of a minute")
    check: str | None = option(
        None, "instead compile every architecture of the corpus at a tiny size", choices=["corpus"]
    )

    @property
    def search_minutes(self) -> float:
        """Of our search, and of `tune_relax` beside it; 0: nothing is searched, only rivals are timed."""
        return 0.0 if self.rivals_only else self.minutes

    @property
    def of_tvm(self) -> tuple[int, int]:
        """Candidates of `tune_relax` for as long, which its time ends, and as it is shipped; 0: no search."""
        return MOST_TRIALS * self.tune_relax, self.stock_trials


def device_on_all_cores(spec: DeviceSpec, cores: Iterable[int]) -> DeviceSpec:
    """The same device with a thread on each of some cores."""
    all_cores = tuple(sorted(cores))
    target = {**spec.target, "num-cores": len(all_cores)}
    return replace(spec, threads=len(all_cores), cores=all_cores, target_json=canonical_json(target))


def settings_of(spec: DeviceSpec, folder: Path) -> JsonDict:
    """Settings of a fleet whose only device file, in a folder of its own, is that of a device."""
    write_profiles(folder, [Profile(spec=spec, header=())], force=True)
    return {"devices.folder": str(folder)}


def summary(spec: DeviceSpec, rows: dict[str, Figures]) -> Figures:
    """All networks together: geometric means, and the network that is worst by each ratio."""
    worst, means = {}, {}
    for key in _RATIOS:
        values = {name: row[key] for name, row in rows.items() if row.get(key) is not None}
        is_whole = len(values) == len(rows) or key == "wall_ratio_vs_stock"
        means[key] = statistics.geometric_mean(values.values()) if values and is_whole else None
        if values:
            name = min(values, key=values.__getitem__)
            worst[key] = {"network": name, "value": values[name]}
    searched = [row for row in rows.values() if "is_equal" in row]
    return {
        "device": spec.device_id,
        "target": spec.target,
        "threads": spec.threads,
        "baseline": "runtimes at their best settings, in turn on the same cores; tune_relax with XGBoost",
        "networks": rows,
        "is_equal": all(row["is_equal"] for row in searched) if searched else None,
        **means,
        "worst": worst,
    }


def measure(options: Options) -> Figures:
    """Tune and compare, or check the corpus."""
    if options.check:
        return check_corpus(list(tiny_names()))
    spec = select_devices(load_fleet().config)[DeviceId(options.device)]
    if options.threads == "all":
        spec = device_on_all_cores(spec, os.sched_getaffinity(0))
    names = options.network or (_QUICK if options.quick else tuple(NETWORKS))
    rows = {}
    with working_folder(options.keep) as folder:
        settings = settings_of(spec, folder / "devices")
        for name in names:
            # Of another search is another row of the same folder.
            place = "-".join([name, *map(str, (spec.threads, options.search_minutes, *options.of_tvm))])

            def row(name: str = name, place: str = place) -> Figures:
                shutil.rmtree(folder / place, ignore_errors=True)
                return compare(settings, spec, NETWORKS[name], options, folder / place)

            rows[name] = kept(folder / "rows" / f"{place}.json", row)
    return summary(spec, rows)


main = benchmark(
    "networks", __doc__, Options, measure, fails=lambda result: result.get("failed_late"), table=sections
)

if __name__ == "__main__":
    main()
