"""The picture of a network's search: steps that fall, and names that do not cover each other."""

from __future__ import annotations

from fleet.tuning.journey import BOTTOM, LEFT, RIGHT, TOP, journey, spread


def test_names_stand_apart_inside_the_picture() -> None:
    assert spread([10.0, 100.0], 15, 0, 200) == [10.0, 100.0]
    assert spread([10.0, 11.0, 12.0], 15, 0, 200) == [10.0, 25.0, 40.0]
    assert spread([195.0, 199.0], 15, 0, 200) == [185.0, 200.0]
    assert spread([-9.0, 0.0], 15, 5, 200) == [5.0, 20.0]


def test_a_search_is_drawn_as_steps_beside_its_rivals() -> None:
    curve = [(60.0, 8e-3), (120.0, 4e-3), (240.0, 2e-3)]
    drawn = journey("net", curve, {"OpenVINO": 3e-3, "fleet tune": 2.5e-3}, "fleet tune")
    assert drawn is not None
    corners = [tuple(map(float, corner.split(","))) for corner in drawn.path.split()]
    assert len(corners) == 5, "a step has a level and a fall"
    assert [x for x, _ in corners] == sorted(x for x, _ in corners)
    assert [y for _, y in corners] == sorted(y for _, y in corners), "fast is at the foot"
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in corners)
    assert [(line.name, line.is_ours) for line in drawn.lines] == [
        ("OpenVINO 3 ms", False),
        ("fleet tune 2.5 ms", True),
    ]
    assert [text for _, text in drawn.minutes] == ["0", "1", "2", "3", "4"]
    assert [text for _, text in drawn.latencies] == ["2", "3", "5", "7"]


def test_a_network_of_which_a_program_never_ran_has_no_picture() -> None:
    assert journey("net", [], {"OpenVINO": 3e-3}, "fleet tune") is None
