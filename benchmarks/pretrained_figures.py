"""The figures of `benchmarks.pretrained`, from what its cases found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.tables import interval
from fleet.json_types import Json, JsonDict
from fleet.models.standings import mean_of
from transfer.adapt.base import Regime
from transfer.arrays import Floats

#: Samples of the new profile that every case has.
SAMPLES = 64
#: Contenders whose name in a gain is longer.
_SPOKEN = {"few": "store_only", "elsewhere": "other_processors"}


def figures(cases: Mapping[str, Json], samples: Sequence[int]) -> JsonDict:
    """Means over all judged workloads of all cases, with 90 % intervals over workloads, and paired gains.

    Gains are of the shipped model's way over each contender that was there.
    """
    names = _names(cases)
    arrays = {name: _of_all(cases, "top1", name) for name in sorted(names) if not name.startswith("own/")}
    result: JsonDict = {"judged": len(next(iter(arrays.values())))}
    for name, found in arrays.items():
        result[f"top1_{name.replace('/', '_k')}"] = _figure(found)
    for name in (one for one in arrays if one.startswith(("shipped/", "elsewhere/"))):
        result[f"top5_{name.replace('/', '_k')}"] = _figure(_of_all(cases, "top5", name))
    for k in (0, *samples):
        mine = arrays[f"shipped/{k}"]
        result[f"top1_k{k}"] = result[f"top1_shipped_k{k}"][0]
        at = f"_k{k}" if k else ""
        for name in sorted(arrays):
            other, number = name.split("/")
            if other not in ("shipped", "random") and int(number) == k:
                result[f"gain_over_{_SPOKEN.get(other, other)}{at}"] = _figure(mine - arrays[name])
        if k:
            result[f"gain_of_{k}_samples"] = _figure(mine - arrays["shipped/0"])
    for name in sorted(name for name in names if name.startswith("own/")):
        result[f"gain_of_{name.removeprefix('own/')}_own_samples"] = _figure(_own_gain(cases, name))
    return result


def _own_gain(cases: Mapping[str, Json], name: str) -> Floats:
    """What samples of a group's own workloads add on its other ones, in the cases that have so many."""
    return np.array(
        [
            top1 - case["top1"]["shipped/0"][workload_id]
            for _, case in sorted(cases.items())
            for workload_id, top1 in sorted(case["top1"].get(name, {}).items())
        ]
    )


def broad(count: int) -> str:
    """Name of the contender that learns from so many workloads."""
    return f"of-{count}"


def breadth_figures(cases: Mapping[str, Json], samples: Sequence[int], breadth: Sequence[int]) -> JsonDict:
    """Top-1 by the number of workloads learnt from, and of samples; empty where only one number is there."""
    names = {
        count: broad(count)
        for count in breadth
        if all(broad(count) in one["workloads"] for one in cases.values())
    }
    names[int(np.mean([one["workloads"]["shipped"] for one in cases.values()]))] = "shipped"
    if len(names) < 2:
        return {}
    curve = {
        str(count): {str(k): _figure(_of_all(cases, "top1", f"{name}/{k}")) for k in (0, *samples)}
        for count, name in sorted(names.items())
    }
    return {"breadth": curve}


def _names(cases: Mapping[str, Json]) -> set[str]:
    return {name for one in cases.values() for name in one["top1"]}


def _of_all(cases: Mapping[str, Json], measure: str, name: str) -> Floats:
    """A measure of a contender by workload, case by case."""
    return np.array(
        [value for _, one in sorted(cases.items()) for _, value in sorted(one[measure][name].items())]
    )


def _figure(values: Floats) -> list[float] | None:
    """Mean over workloads with its 90 % interval."""
    return interval(mean_of(values).estimate())


def expectations(found: Json, profiles: int, contender: str = "shipped") -> JsonDict:
    """What a contender's first head is worth, by number of samples, as `ShippedModel.expected` has it.

    Empty where that contender was not there.
    """
    if f"top1_{contender}_k0" not in found:
        return {}
    unseen = {"unseen": "processor"} if contender == "elsewhere" else {}
    return {
        str(k): {
            **unseen,
            "top1": found[f"top1_{contender}_k{k}"][0],
            "top1_interval": found[f"top1_{contender}_k{k}"][1:],
            "top5": found[f"top5_{contender}_k{k}"][0],
            "top5_interval": found[f"top5_{contender}_k{k}"][1:],
            "workloads": found["judged"],
            "devices": profiles,
            "samples": k,
            "regime": Regime.BOTH_NEW.value,
        }
        for k in (0, SAMPLES)
    }
