"""What came, changed, left or is wrong: the comparing of known devices with the files of now."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family
from fleet.config.device_changes import DeviceChanges, DeviceFiles, compare
from tests.record_fixtures import make_spec

A, B, C = map(DeviceId, "abc")
NAMES = st.sampled_from([DeviceId(name) for name in "abcdef"])


def spec_of(name: str, **changes: object) -> DeviceSpec:
    return make_spec(name, **{"kind": DeviceKind.LOCAL, "cores": (0,), **changes})  # type: ignore[arg-type]


SPECS = {A: spec_of("a"), B: spec_of("b")}


def changes(**found: Any) -> DeviceChanges:
    """Nothing but what is named."""
    nothing: dict[str, Any] = {"added": {}, "changed": {}, "retired": (), "faults": {}, "disturbing": {}}
    return DeviceChanges(**nothing | found)


def test_another_kind_or_family_is_another_device() -> None:
    other = {A: spec_of("a", kind=DeviceKind.CUDA), B: spec_of("b", family=Family.GPU)}
    found = compare(SPECS, DeviceFiles(specs=other))
    assert found == changes(faults=found.faults)
    assert "kind: was 'local' and is 'cuda' now" in found.faults[A]
    assert "family: was 'cpu' and is 'gpu' now" in found.faults[B]


def test_a_core_that_times_from_now_is_told_to_those_that_build_on_it() -> None:
    known = {**SPECS, C: spec_of("c", kind=DeviceKind.REPLAY, cores=(0,))}
    new = spec_of("d", cores=(1,))
    found = compare(known, DeviceFiles(specs={**known, new.device_id: new}))
    assert set(found.disturbing) == {A, B}, "a replay device builds nothing"
    assert "d times on core 1 now" in found.disturbing[A]
    moved = {**known, A: replace(SPECS[A], cores=(1,))}
    assert set(compare(known, DeviceFiles(specs=moved)).disturbing) == {B}, "a is started anew as it is"
    same = spec_of("d")
    assert not compare(known, DeviceFiles(specs={**known, same.device_id: same})).disturbing


ANY_SPECS = st.dictionaries(NAMES, st.tuples(st.sampled_from("xyz"), st.sampled_from(DeviceKind))).map(
    lambda found: {name: spec_of(name, note=note, kind=kind) for name, (note, kind) in found.items()}
)


@given(before=ANY_SPECS, now=ANY_SPECS, broken=st.sets(NAMES | st.just(DeviceId(""))))
def test_each_device_has_one_fate_and_following_it_is_the_end(
    before: dict[DeviceId, DeviceSpec], now: dict[DeviceId, DeviceSpec], broken: set[DeviceId]
) -> None:
    files = DeviceFiles(
        specs={name: spec for name, spec in now.items() if name not in broken},
        faults=dict.fromkeys(broken, "broken"),
    )
    found = compare(before, files)
    fates = [*found.added, *found.changed, *found.retired]
    assert len(fates) == len(set(fates))
    assert not set(fates) & set(found.faults)
    assert set(found.added) == set(files.specs) - set(before)
    after = {one: spec for one, spec in before.items() if one not in found.retired}
    after |= {**found.added, **found.changed}
    again = compare(after, files)
    # What is wrong stays wrong until it is mended.
    assert again == changes(faults=found.faults)
    # Whoever has a file that says the same, or a broken one, is let alone.
    for one, spec in before.items():
        if one in broken or files.specs.get(one) == spec:
            assert after[one] == spec
