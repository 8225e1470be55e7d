from __future__ import annotations

import gc

from fleet.daemon.garbage_collection import seldom_collected


def test_dead_cycles_are_looked_for_seldom_and_then_as_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with seldom_collected():
        assert gc.isenabled()
        assert all(now >= usual for now, usual in zip(gc.get_threshold(), before, strict=True))
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
