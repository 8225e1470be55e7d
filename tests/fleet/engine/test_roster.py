"""The devices of a fleet, and which of them share candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceKind, DeviceSpec
from fleet.engine.roster import Roster
from fleet.errors import FleetError
from tests.coordinator_fixtures import ONE, TWO, make_fleet
from tests.record_fixtures import make_spec
from tests.transport_fixtures import PROTOCOL


def live(name: str, **changes: Any) -> DeviceSpec:
    return make_spec(name, kind=DeviceKind.LOCAL, **changes)


def test_a_live_device_never_joins_what_replay_devices_share(tmp_path: Path) -> None:
    again = make_fleet(tmp_path).specs[ONE]
    roster = Roster({}, {ONE: again}, PROTOCOL)
    with pytest.raises(FleetError, match="one of its family cpu replay what anybody may have recorded"):
        roster.put(live("two"))
    assert set(roster.specs) == {ONE}
    both = Roster({}, {ONE: again, TWO: live("two")}, PROTOCOL)
    assert both.sharing[ONE] != both.sharing[TWO]
    both.retire(TWO)
    both.put(again)
    assert both.sharing[ONE] != both.sharing[TWO], "names never change back"
    # One that only the store knows gives way.
    late = Roster({ONE: again}, {}, PROTOCOL)
    assert late.put(live("two")) is True
    assert late.sharing[ONE] != late.sharing[TWO]
    assert set(late.live_names) == {"cpu"}
