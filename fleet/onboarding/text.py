"""The result of an onboarding in sentences, for people at a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fleet.json_types import Json

#: Why an onboarding has fewer samples than it was asked for.
WHY_FEWER = "source devices have measured no more candidates; `fleet collect` on one of them makes more"
#: What is put in order in each regime (`transfer.adapt.base.Regime`).
_MEANT = {
    "device-new": "candidates that source devices measured; expect less of others",
    "candidate-new": "unmeasured candidates of workloads that source devices know",
    "both-new": "candidates of unmeasured workloads",
}


def lines_of(result: Json) -> Iterator[str]:
    """What `fleet onboard` prints of what `--json` gives, with `--replay` or without."""
    fewer = "" if result["samples"] >= result["samples_asked"] else f" of {result['samples_asked']}"
    yield f"{result['device']}: {result['samples']} samples{fewer}{_ended(result)}"
    if fewer and not result.get("shipped"):
        yield WHY_FEWER
    strategy = result["taken"]
    said = "" if strategy == result["strategy"] else f", chosen by {result['strategy']}"
    sources = ", ".join(result["source_devices"])
    if "shipped" in result:
        sources = f"none in the store; the model that comes with the program, {result['shipped']}"
    yield f"strategy: {strategy}{said}; source devices: {sources}"
    yield from _near(result)
    if unlike := result.get("unlike"):
        yield f"beware: {unlike}"
    check = result.get("notes", {}).get("check")
    if check:
        yield f"check: {check if isinstance(check, str) else check['says']}"
    expected = result.get("expected")
    if expected is None:
        yield f"expected: not known ({result.get('reason', 'no samples')})"
    else:
        by_samples = f"{expected['samples']} samples"
        by_devices = f"the results of {expected.get('devices')} known devices"
        if expected.get("unseen") == "processor":
            by_devices += ", each without records of its processor"
        made_of = f"90 %, from {by_samples if expected['samples'] else by_devices}"
        yield f"expected: {_of(expected, 'top1')}; {_of(expected, 'top5')} ({made_of})"
        yield f"this holds for {_MEANT[expected.get('regime', 'device-new')]}"
    truth = result.get("truth")
    if truth:
        yield (
            f"true: top-1 {truth['top1']:.3f}, top-5 {truth['top5']:.3f} (a random choice: "
            f"{truth['random_top1']:.3f}, {truth['random_top5']:.3f})"
        )
    for point in result.get("curve", ()):
        yield f"before, with {point['samples']} samples: top-1 {point['top1']:.3f}"
    for point in result.get("more", ()):
        yield f"with {point['samples']} samples: top-1 {point['top1']:.3f}, as on the shipped devices"
    if "path" in result:
        yield f"model: {result['path']}"
    yield from _served(result)
    parts = ((part.replace("_", " "), secs) for part, secs in result["seconds"].items())
    yield "seconds: " + ", ".join(f"{part} {secs:.1f}" for part, secs in parts)


def _served(result: Json) -> Iterator[str]:
    """Which version serves, and why; and what the new one lacks."""
    if "served_by" not in result:
        return
    device, served_by = result["device"], result["served_by"]
    if served_by:
        yield f"{device} is served by {served_by}: {result.get('why_served') or 'no reason was given'}"
    else:
        yield f"nothing serves {device}"
    if why := result.get("why_not_served"):
        version = result["version"]
        yield (
            f"{version} is a challenger: {why}; to let it serve anyway: fleet models use {device} {version}"
        )


def _ended(result: Json) -> str:
    outcomes: Mapping[str, int] = result.get("outcomes", {})
    failed = {name: count for name, count in outcomes.items() if name != "ok"}
    return "".join(f", {count} {name}" for name, count in failed.items())


def _near(result: Json) -> Iterator[str]:
    fingerprint = result.get("fingerprint")
    if fingerprint is None:
        return
    if not fingerprint["ran"]:
        yield (
            f"fingerprint: none of {fingerprint['programs']} reference programs ran; devices are "
            "compared by the description of their hardware alone"
        )
    elif not fingerprint["distance"]:
        yield f"fingerprint: {fingerprint['ran']} programs; no source device has one to compare it with"
    else:
        apart: Sequence[str] = [f"{name} {value:.2f}" for name, value in fingerprint["distance"].items()]
        yield f"fingerprint: {fingerprint['ran']} programs; distance to {', '.join(apart)}"


def _of(expected: Json, name: str) -> str:
    low, high = expected[f"{name}_interval"]
    return f"top-{name[3:]} {expected[name]:.3f} ({low:.3f} to {high:.3f})"
