"""What the shipped model is worth where it never was: `python -m benchmarks.pretrained --dataset FOLDER`.

The networks of a published dataset are parted into five groups of architectures. A group and a profile are
held out together: a model learns from the other groups on the other profiles and gives the profile a head
without a measurement (`transfer.adapt.nearest`), then with k samples of the other groups, as `fleet onboard`
does in an empty store. Both are judged on the group's programs on the profile. Beside them: the same from 32
workloads, as many as the store of `make run` has, and training from scratch. Each group is held out with
every profile or every `--target`, with `--quick` once a seed. The same way also gets samples of half of the
group's own workloads (`own`), and is judged on the other half. With several datasets (`--dataset` again) one
model learns from all of them, and a fourth contender, `elsewhere`, learns on other processors than the
profile's only; `--contenders` chooses.

`--ship fleet/shipped/cpu --name NAME` then trains on everything that is not held out for judging
(`fleet.models.holdout`), and writes the folder that the wheel carries, with these figures as expectation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from agents.records import Workload, content_hash
from benchmarks.harness import Figures, benchmark, option, run_kept, working_folder
from benchmarks.onboarding_baselines import baselines
from benchmarks.onboarding_cases import Case, FewShotSet, situation_of, visible_dataset
from benchmarks.onboarding_curve import RANDOM, Point, judged
from benchmarks.pretrained_ship import (
    SAMPLES,
    ShippedAbout,
    expectations,
    figures,
    ship,
    train_model,
)
from fleet.datasets.admission import open_dataset
from fleet.datasets.dataset_files import PublishedDataset, read_published
from fleet.errors import FleetError
from fleet.models.versions import load_snapshot, train_config
from fleet.onboarding.adaptation import AUTO, strategy_for
from fleet.store.store import Store
from transfer.adapt.base import FewShotTask, Regime, Strategy, without_device
from transfer.adapt.guard import Scratch
from transfer.adapt.nearest import day_zero_head
from transfer.adapt.sample_selection import draw_few_shot
from transfer.arrays import Floats, Rows
from transfer.data.splits import leave_networks_out

GROUPS = 5
#: Workloads of the store of `make run`.
FEW_WORKLOADS = 32
#: The shipped model's way; the same from few workloads; the same without the profile's processor.
CONTENDERS = ("shipped", "few", "elsewhere")
#: Candidates of a workload that is judged.
_LEAST = 4


class HeldOut(NamedTuple):
    """A group of networks and a profile that are held out together."""

    group: str
    target: str
    seed: int

    @property
    def name(self) -> str:
        """In files."""
        return f"{self.group}-{self.target}-{self.seed}"


@dataclass(frozen=True)
class Options:
    """What learns, what is held out, and what is judged beside it."""

    dataset: tuple[Path, ...] = option(help="a published dataset")
    keep: Path | None = option(None, "folder of finished cases; an earlier run goes on")
    quick: bool = option(False, "each group with one profile a seed")
    target: tuple[str, ...] = option((), "hold out only this profile")
    group: tuple[str, ...] = option((), "hold out only this group")
    seeds: int = option(1, least=1)
    samples: tuple[int, ...] = option((), f"beside {SAMPLES}; more than there are: all", may_be_empty=True)
    baselines: tuple[str, ...] = option(
        (),
        "what others would do with the same samples",
        choices=[one.name for one in baselines()],
        may_be_empty=True,
    )
    contenders: tuple[str, ...] = option(CONTENDERS, "models compared", choices=CONTENDERS)
    epochs: int = option(24, least=1)
    workers: int = option(len(os.sched_getaffinity(0)), "cases at once", least=1)
    ship: Path | None = option(None, "folder to write the shipped model to")
    name: str = option("open-cpu", "of the shipped model")

    @property
    def all_samples(self) -> tuple[int, ...]:
        """Numbers of samples."""
        return tuple(sorted({SAMPLES, *self.samples}))

    @property
    def of_cases(self) -> str:
        """Tells kept cases apart."""
        return content_hash(repr((self.epochs, self.all_samples, sorted(self.baselines + self.contenders))))


def architecture(network: str) -> str:
    """The architecture of a network's name: `resnet` of `transformers:resnet,image_size=64`."""
    return re.split(r"[,:]", network.removeprefix("transformers:"))[0]


def networks_of(workloads: Iterable[Workload]) -> list[str]:
    """Names of the networks that run some workloads."""
    return sorted({name for one in workloads for name, count in one.networks if count > 0})


def groups_of(networks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Networks in `GROUPS` groups, all sizes of an architecture in one; by hash, so that it says the same."""
    found: dict[str, list[str]] = {f"group-{place + 1}": [] for place in range(GROUPS)}
    order = sorted({architecture(one) for one in networks}, key=lambda one: content_hash("group", one))
    for network in sorted(networks):
        found[f"group-{order.index(architecture(network)) % GROUPS + 1}"].append(network)
    return {name: tuple(members) for name, members in found.items() if members}


def cases_of(groups: Sequence[str], targets: Sequence[str], *, seeds: int, is_quick: bool) -> list[HeldOut]:
    """Pairs of a group and a profile; with `is_quick` each group once a seed, with the next profile."""
    return [
        HeldOut(group, target, seed)
        for seed in range(seeds)
        for place, group in enumerate(sorted(groups))
        for number, target in enumerate(sorted(targets))
        if not is_quick or number == (place + seed) % len(targets)
    ]


class Trial:
    """One case as it is run: what is held out of a store, and what was found.

    Attributes:
        train: Rows of the other groups.
        test: Rows of the group that the profile has measured.
        points: How each contender did with each number of samples.
    """

    def __init__(self, store: Path, case: HeldOut) -> None:
        self.case, self.snapshot = case, load_snapshot(Store.read(store))
        self.dataset = self.snapshot.dataset
        self.column = self.dataset.column(case.target)
        groups = groups_of(networks_of(self.snapshot.workloads.values()))
        splits = leave_networks_out(self.dataset, self.snapshot.workloads, groups)
        [split] = [one for one in splits if one.name == case.group]
        self.train, self.test = split.train, self._measured(split.test)
        self.points: list[Point] = []

    @property
    def about(self) -> Case:
        """The case as of an onboarding; judged are workloads with enough candidates."""
        counts = np.bincount(self.dataset.group[self.test])
        return Case(
            regime=Regime.BOTH_NEW,
            target=self.case.target,
            split=self.case.group,
            pool=self.train,
            source_rows=self.train,
            test=self.test[counts[self.dataset.group[self.test]] >= _LEAST],
            seed=self.case.seed,
        )

    def samples(self, rows: Rows, k: int) -> Rows:
        """Random candidates of random workloads, some of each, that the profile has measured; at most k."""
        there, seed = self._measured(rows), self.case.seed + k
        return draw_few_shot(self.dataset, self.case.target, there, min(k, len(there)), seed=seed)

    def judge(self, name: str, k: int | None, scores: Floats | None, test: Rows) -> None:
        """Note top-1 and top-5 by workload, as a search asks: nobody measured any of the candidates."""
        case, measures = replace(self.about, test=test), ("top1", "top5")
        self.points.append(judged(name, case, self.dataset, (k, k or 0), scores, measures=measures))

    def _measured(self, rows: Rows) -> Rows:
        measured: Rows = rows[np.isfinite(self.dataset.latency_secs[rows, self.column])]
        return measured


def run_case(store: Path, case: HeldOut, asked: Options) -> Figures:
    """How each contender does on one case, with each number of samples."""
    trial = Trial(store, case)
    dataset, test = trial.dataset, trial.about.test
    features = dataset.features.take(test)
    alone = strategy_for(AUTO, Regime.BOTH_NEW, is_alone=True)
    config = train_config(asked.epochs)
    task = partial(FewShotTask, target=case.target, source_rows=test[:0], config=config, seed=case.seed)
    trial.judge(RANDOM, None, None, test)
    for name, (rows, sources) in _contenders(trial, asked).items():
        known = dataset
        for one in set(dataset.device_ids) - {*sources, case.target}:
            known = without_device(known, one)
        view = without_device(known, case.target)
        source = train_model(view, trial.snapshot, rows, sources, case.seed, asked.epochs)
        hardware = {one: dataset.hardware[dataset.column(one)] for one in sources}
        zero = day_zero_head(source, case.target, dataset.hardware[trial.column], hardware)
        trial.judge(name, 0, zero.score_unseen(features), test)
        ways: dict[str, Strategy] = {name: alone, **({"scratch": Scratch()} if name == "shipped" else {})}
        for k in asked.all_samples:
            chosen = trial.samples(trial.train if name == "elsewhere" else rows, k)
            for label, way in ways.items():
                head = way.adapt(task(source=source, dataset=known, few_shot=chosen))
                trial.judge(label, k, head.score_unseen(features), test)
        if name == "shipped":
            # With samples of the very networks that are tuned, of half of their workloads, and judged on the
            # other half: as a daemon's model is that learns from what it measures of a user's networks.
            groups = np.random.default_rng(case.seed).permutation(np.unique(dataset.group[test]))
            is_sampled = np.isin(dataset.group[test], groups[: len(groups) // 2])
            own, others = test[is_sampled], test[~is_sampled]
            for count in (*(k for k in asked.all_samples if k < len(own)), *([None] if len(own) else [])):
                chosen = own if count is None else trial.samples(own, count)
                head = alone.adapt(task(source=source, dataset=dataset, few_shot=chosen))
                trial.judge("own", count, head.score_unseen(dataset.features.take(others)), others)
    if asked.baselines:
        _judge_baselines(trial, asked)
    return {"points": msgspec.to_builtins(trial.points)}


def _judge_baselines(trial: Trial, asked: Options) -> None:
    """Note what others would do with the samples that the shipped model's way gets."""
    about = trial.about
    situation = situation_of(visible_dataset(trial.dataset, about), about)
    for k in (0, *asked.all_samples):
        chosen = trial.samples(trial.train, k) if k else trial.train[:0]
        few_shot = FewShotSet(chosen, trial.dataset.latency_secs[chosen, trial.column])
        for baseline in (one for one in baselines() if one.name in asked.baselines):
            if (scores := baseline.score(situation, few_shot)) is not None:
                trial.judge(baseline.name, k, scores, about.test)


def _contenders(trial: Trial, asked: Options) -> dict[str, tuple[Rows, list[str]]]:
    """Rows and devices that each contender's model learns from."""
    dataset, rows, target = trial.dataset, trial.train, trial.case.target
    sources = [str(one) for one in dataset.device_ids if one != target]
    found = {"shipped": (rows, sources)}
    if "few" in asked.contenders:
        order = np.random.default_rng(trial.case.seed).permutation(np.unique(dataset.group[rows]))
        found["few"] = (rows[np.isin(dataset.group[rows], order[:FEW_WORKLOADS])], sources)
    processors = {str(one): described.cpu_model for one, (_, described) in trial.snapshot.devices.items()}
    elsewhere = [one for one in sources if processors[one] != processors[target]]
    if "elsewhere" in asked.contenders and elsewhere and len(elsewhere) < len(sources):
        latency = dataset.latency_secs[rows][:, [dataset.column(one) for one in elsewhere]]
        found["elsewhere"] = (rows[np.isfinite(latency).any(axis=1)], elsewhere)
    return found


def measure(options: Options) -> Figures:
    """Run all cases that are not there yet, and put what they found together."""
    with working_folder(options.keep) as folder:
        return _run(options, folder)


def opened_store(folders: Sequence[Path], folder: Path) -> tuple[list[PublishedDataset], Path]:
    """Published datasets, and a store with all of them, which stays in a folder of the benchmark."""
    datasets = [read_published(each) for each in folders]
    store = folder / f"store-{'-'.join(each.sha256[:12] for each in datasets)}"
    with Store.open(store) as opened:
        for dataset in datasets:
            open_dataset(dataset.folder, opened, dataset.sha256)
    return datasets, store


def _run(options: Options, folder: Path) -> Figures:
    datasets, store = opened_store(options.dataset, folder)
    sums = store.name.removeprefix("store-")
    reader = Store.read(store)
    workloads = reader.workloads()
    networks = networks_of(workloads.values())
    targets = [str(one) for one in reader.devices()]
    processors = sorted({one.descriptor.cpu_model for one in reader.devices().values() if one.descriptor})
    held_out = [one for one in targets if not options.target or one in options.target]
    groups = list(groups_of(networks))
    for what, named, there in (("profile", options.target, targets), ("group", options.group, groups)):
        if unknown := set(named) - set(there):
            raise FleetError(f"no {what} {min(unknown)!r} in the datasets; they have {', '.join(there)}")
    cases = cases_of(options.group or groups, held_out, seeds=options.seeds, is_quick=options.quick)
    jobs = {folder / f"{sums}-{options.of_cases}" / f"{one.name}.json": one for one in cases}
    run = partial(run_case, store, asked=options)
    found = run_kept(run, jobs, options.workers, of="the benchmark of the shipped model")
    points = [msgspec.convert(one, Point) for figures_of_case in found for one in figures_of_case["points"]]
    result: Figures = {
        "datasets": {one.name: one.sha256 for one in datasets},
        "records": sum(one.card["records"] for one in datasets),
        "workloads": len(workloads),
        "architectures": len({architecture(one) for one in networks}),
        "profiles": len(targets),
        "processors": processors,
        "cases": len(cases),
        **figures(points, options.all_samples),
    }
    if options.ship is not None:
        about = ShippedAbout(
            name=options.name,
            datasets={one.name: one.sha256 for one in datasets},
            processors=tuple(processors),
            expected=expectations(result, len(held_out)),
            expected_elsewhere=expectations(result, len(held_out), "elsewhere"),
        )
        result["shipped"] = ship(store, options.ship, about, options.epochs)
    return result


main = benchmark("pretrained", __doc__, Options, measure)

if __name__ == "__main__":
    main()
