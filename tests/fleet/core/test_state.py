"""Rules of the fleet's state: `scenarios.txt` has events, and what the state asks for and says after each.

Any order of events is tried in `test_state_properties.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import Instruction, JobId
from fleet.core.leases import Leasing
from fleet.core.state import FleetState
from fleet.core.state_core import StateError
from fleet.core.words import Limits, Request, RequestId, RequestKind
from tests.fleet_world import job, reopened
from tests.scenario_fixtures import fields_of, is_so, place_in, read_scenarios

#: Midnight UTC.
START = 86_400.0
#: What an event says where a scenario does not.
USUAL: dict[str, Any] = {
    **{"device_id": "a", "family": "cpu", "environment_id": "e", "reason": "killed by signal 9"},
    **{"outcomes": {"ok": 2}, "device_secs": 10.0, "result": {}},
}
#: How a scenario writes an instruction: its word, and the fields that follow.
WORDS = {
    **{"StartAgent": "start device_id incarnation", "StopAgent": "kill device_id incarnation"},
    **{"GrantLease": "grant job_id", "WantJobs": "want device_id room", "Quarantine": "quarantine"},
    **{"StartTraining": "train", "StopTraining": "end family", "ShowRequest": "show request_id"},
    **{
        "StartDriver": "drive request_id",
        "StopDriver": "halt request_id",
        "RetireDevice": "retire device_id",
    },
}


SCENARIOS = read_scenarios(Path(__file__).with_name("scenarios.txt"))


def said(made: Instruction) -> str:
    word, *names = WORDS[type(made).__name__].split()
    values = [str(getattr(made, name)) for name in names]
    if isinstance(made, ev.Quarantine):
        values = [made.job_id or made.device_id]
    if isinstance(made, ev.StartTraining):
        values = ["+".join(reason.kind for reason in made.reasons)]
    return " ".join([word, *values])


class Scenario:
    """One state, told of events; time stands still unless the scenario waits."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.now = START
        self.made: list[Instruction] = []
        #: All jobs that were ever granted.
        self.granted: list[JobId] = []

    def play(self, lines: list[str]) -> None:
        for line in lines:
            if line.startswith("    "):
                self.check(line.strip())
            else:
                self.made = []
                self.do(line)

    # ---- what happens ----

    def do(self, text: str) -> None:
        """Actions with `;` between them, so often or until an instruction is asked for."""
        text = self.with_ids(text)
        event, _, refusal = text.partition(" !! ")
        if refusal:
            before = self.state.to_json()
            with pytest.raises(StateError, match=refusal) as raised:
                self.do(event)
            assert "Last events" in str(raised.value)
            assert self.state.to_json() == before
        elif times := re.match(r"(\d+) times: ", text):
            for number in range(int(times[1])):
                self.do(text[times.end() :].replace("#", str(number)))
        elif until := re.match(r"until (\w+): ", text):
            for _ in range(100):
                self.do(text[until.end() :])
                if any(said(one).startswith(until[1]) for one in self.made):
                    return
            raise AssertionError("nothing came of it")
        else:
            for action in text.split("; "):
                word, _, rest = action.strip().partition(" ")
                self.act(word, rest)

    def with_ids(self, text: str) -> str:
        """With the requests that the fleet made by itself: the first and the last one."""
        ids = self.state.request_ids()
        return text.replace("$first", ids[0]).replace("$last", ids[-1]) if ids else text

    def act(self, word: str, rest: str) -> None:
        """An action in a word, or an event by its name and fields."""
        names, _, fields = rest.rpartition(" | ") if " | " in rest else ("", "", rest)
        if ":" not in fields:
            names, fields = fields, ""
        several, values = names.split(), fields_of(fields)
        match word:
            case "begin":
                self.play(SCENARIOS[rest])
            case "limits":
                self.state = FleetState(Leasing(convert(values, Limits)))
            case "reopen":
                self.state = reopened(self.state)
            case "pass":
                self.now += float(rest)
            case "wait":
                self.now += float(rest)
                self.tell("Tick")
            case "up":
                for name in several or ["a"]:
                    self.tell("DeviceAdded", device_id=name, policy=values)
                    self.comes(name, {})
            case "comes":
                self.comes(several[0] if several else "a", values)
            case "jobs":
                self.submit(several, values)
            case "request":
                request_id, kind = several
                told = {"request_id": request_id, "kind": kind, "minutes": values.pop("minutes", None)}
                self.tell("RequestSubmitted", request={**told, "arguments": values})
            case "finish":
                self.tell("JobFinished", job_id=next(iter(self.leases("a"))))
            case _:
                self.tell(word, **values)

    def comes(self, name: str, values: dict[str, Any]) -> None:
        """A device comes up, which was perhaps not known before."""
        if name not in self.state.device_ids():
            family = values.pop("family", "cpu")
            self.tell("DeviceAdded", device_id=name, family=family, neighbourhood="cores")
        self.tell("AgentStarted", device_id=name)
        self.tell("ProbePassed", device_id=name, **values)

    def submit(self, names: list[str], values: dict[str, Any]) -> None:
        device = values.pop("device_id", "a")
        for name in names:
            self.apply(ev.JobSubmitted(at_secs=self.now, job=replace(job(name, device), **values)))

    def tell(self, kind: str, **values: Any) -> None:
        self.apply(self.event(kind, **values))

    def apply(self, event: ev.Event) -> None:
        made = self.state.apply(event)
        self.made += made
        self.granted += [one.job_id for one in made if isinstance(one, ev.GrantLease)]

    def event(self, kind: str, **values: Any) -> ev.Event:
        """An event with what is usual of its kind."""
        usual = {**USUAL, "at_secs": self.now}
        name = values.get("device_id", "a")
        if name in self.state.device_ids():
            leases = self.leases(name)
            usual["incarnation"] = self.state.describe(DeviceId(name))["incarnation"]
            usual["fencing_token"] = leases.get(values.get("job_id"), min(leases.values(), default=None))
        fields = getattr(ev, kind).__struct_fields__
        told = {"event": kind, **{key: value for key, value in usual.items() if key in fields}, **values}
        [made] = ev.decode_events(json.dumps([told]).encode())
        return made

    def leases(self, name: str) -> dict[str, int]:
        leases = self.state.describe(DeviceId(name))["leases"]
        return {lease["job_id"]: lease["fencing_token"] for lease in leases}

    # ---- what follows ----

    def check(self, text: str) -> None:
        text = self.with_ids(text)
        sign, _, words = text.partition(" ")
        made = [said(one) for one in self.made]
        if sign == "=>":
            assert made == ([] if words == "nothing" else words.split(", ")), text
        elif sign == "->" and words.startswith("no "):
            assert not [one for one in made if one.startswith(words[3:])], text
        elif sign == "->":
            kinds = {one.split()[0] for one in words.split(", ")}
            assert [one for one in made if one.split()[0] in kinds] == words.split(", "), text
        else:
            assert is_so(text, self.value), text

    def value(self, path: str) -> Any:
        """What a scenario names: a view of the state, and a place in it."""
        name, _, rest = (path, "", "") if path.startswith("news") else path.partition(".")
        word, *more = name.split()
        views = {
            "leases": lambda: self.leases(more[0] if more else "a"),
            "granted": lambda: self.granted,
            "jobs": lambda: {str(key): count for key, count in self.state.job_counts().items()},
            "news": lambda: self.state.is_news(self.event(more[0], **fields_of(" ".join(more[1:])))),
            "open": lambda: [one.kind for one in self.state.open_requests()],
            "requests": self.state.request_ids,
            "request_count": lambda: len(self.state.request_ids()),
            "size": lambda: len(json.dumps(self.state.to_json())),
            "training": self.state.training,
            "unsteady": self.state.unsteady,
            "verdict": lambda: self.state.verdict(DeviceId("a"), JobId(more[0]), int(more[1])),
            "why": lambda: [one.reason for one in self.made if isinstance(one, ev.Quarantine)][-1],
        }
        found = views[word]() if word in views else self.described(word)
        return place_in(found, rest)

    def described(self, name: str) -> dict[str, Any] | None:
        if name in self.state.device_ids():
            return self.state.describe(DeviceId(name))
        return self.state.request(RequestId(name))


@pytest.mark.parametrize("title", [title for title in SCENARIOS if not title.startswith("(")])
def test_a_scenario(title: str) -> None:
    Scenario().play(SCENARIOS[title])


@pytest.mark.parametrize("rules", [ev.RULES - 1, ev.RULES + 1])
def test_events_and_snapshots_of_other_rules_are_refused(rules: int) -> None:
    state = FleetState()
    with pytest.raises(StateError, match=f"events of rules {rules}, this version reads {ev.RULES}"):
        state.apply(ev.CoordinatorStarted(at_secs=START, rules=rules))
    for key, version in (("rules", rules), ("schema", 1)):
        snapshot = state.to_json() | {key: version}
        with pytest.raises(StateError, match=f"snapshot has {key} {version}, this version reads"):
            FleetState.from_json(snapshot)


def test_fingerprints_that_a_command_measures_inside_of_itself_are_no_background() -> None:
    def asked(**arguments: object) -> tuple[bool, int]:
        told = {"devices": ["one"], **arguments}
        made = Request(request_id=RequestId("prints"), kind=RequestKind.FINGERPRINT, arguments=told)
        return made.is_background, made.priority

    assert asked() == (True, 0)
    # Nothing of the background is granted there: it would wait for ever.
    assert asked(embedded=True) == (False, 1)
