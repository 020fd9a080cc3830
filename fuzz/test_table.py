"""The contents of the store beside a model of them that is too simple to be wrong, under any history."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from horovod.bootstrap.store.messages import FrameError, FrameReader
from horovod.bootstrap.store.table import Table

CLIENTS = st.integers(0, 3)
NAMES = st.sampled_from(["", "a", "a/", "a/0", "a/1", "a/b/0", "b/0", "b"])
VALUES = st.one_of(st.integers(-5, 5), st.none(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
OPERANDS = st.dictionaries(
    st.sampled_from(
        [
            "key",
            "value",
            "expected",
            "amount",
            "prefix",
            "count",
            "timeout_s",
            "scope",
            "usual",
            "who",
            "cause",
            "id",
            "op",
        ]
    ),
    VALUES | st.floats() | st.booleans() | NAMES,
    max_size=8,
)
OPERATIONS = [
    "set",
    "get",
    "compare_and_set",
    "add",
    "collect",
    "remove",
    "watch",
    "unwatch",
    "abort",
    "nothing",
]


USUAL = st.sampled_from([{}, {}, {"usual": ""}, {"usual": None}, {"usual": 1}])


def without(usual: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What is not ``usual``, as JSON tells values apart."""
    left_out = [json.dumps(value) for value in usual.values()]
    return {name: value for name, value in found.items() if json.dumps(value) not in left_out}


class Waiting:
    def __init__(
        self,
        who: int,
        number: int,
        name: str,
        count: int,
        until: float,
        usual: dict[str, Any] | None = None,
    ) -> None:
        self.who, self.number, self.name, self.count, self.until = who, number, name, count, until
        self.usual = usual or {}


class StoreHistory(RuleBasedStateMachine):
    """Every request is answered once, at the moment and with the answer that the model foresees."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = Table(lambda: self.now)
        self.values: dict[str, Any] = {}
        self.aborted: list[str] = []
        self.watched: dict[str, dict[int, None]] = {}
        self.waiting: list[Waiting] = []
        self.number = 0

    # What is said to the table, and what came back.

    def ask(self, client: int, op: str, **operands: Any) -> list[tuple[int, dict[str, Any]]]:
        self.number += 1
        self.table.request(client, {"id": self.number, "op": op, **operands})
        return self.taken()

    def taken(self) -> list[tuple[int, dict[str, Any]]]:
        replies, self.table.replies = self.table.replies, []
        return [(who, next(FrameReader(inflates=True).feed(b"".join(frame)))) for who, frame in replies]

    def refused(self, name: str) -> bool:
        return any(name.startswith(scope) for scope in self.aborted)

    def below(self, prefix: str) -> dict[str, Any]:
        return {key[len(prefix) :]: value for key, value in self.values.items() if key.startswith(prefix)}

    def check(self, who: int, said: list[tuple[int, dict[str, Any]]], name: str, *expected: Any) -> None:
        """The own answer is ``expected`` (nothing: none yet), and whoever could go on has been told."""
        own = [answer for one, answer in said if one == who and answer.get("id") == self.number]
        if self.refused(name):
            assert [answer["error"] for answer in own] == ["aborted"]
            return
        assert [answer["ok"] for answer in own] == list(expected)
        others = {(one, answer["id"]): answer for one, answer in said if answer.get("id") != self.number}
        for waiting in list(self.waiting):
            found = self.below(waiting.name)
            if waiting.count:
                ready = len(found) >= waiting.count
                value = json.dumps(without(waiting.usual, found), sort_keys=True)
            else:
                ready, value = waiting.name in self.values, json.dumps(self.values.get(waiting.name))
            if ready:
                answer = others.pop((waiting.who, waiting.number))["ok"]
                assert json.dumps(answer, sort_keys=True) == value
                self.waiting.remove(waiting)
        assert others == {}

    # Operations.

    @rule(who=CLIENTS, key=NAMES, value=VALUES)
    def set(self, who: int, key: str, value: Any) -> None:
        if not self.refused(key):
            self.values[key] = value
        self.check(who, self.ask(who, "set", key=key, value=value), key, None)

    @rule(who=CLIENTS, key=NAMES, expected=VALUES, value=VALUES)
    def compare_and_set(self, who: int, key: str, expected: Any, value: Any) -> None:
        now = self.values.get(key)
        swaps = now == expected and type(now) is type(expected)
        if not self.refused(key) and swaps:
            self.values[key] = value
        said = self.ask(who, "compare_and_set", key=key, expected=expected, value=value)
        self.check(who, said, key, [swaps, value if swaps else now])

    @rule(who=CLIENTS, key=st.sampled_from(["n", "a/n"]), amount=st.integers(-3, 3))
    def add(self, who: int, key: str, amount: int) -> None:
        total = self.values.get(key, 0) + amount
        if not self.refused(key):
            self.values[key] = total
        self.check(who, self.ask(who, "add", key=key, amount=amount), key, total)

    @rule(who=CLIENTS, key=NAMES, timeout_s=st.integers(0, 5))
    def get(self, who: int, key: str, timeout_s: int) -> None:
        said = self.ask(who, "get", key=key, timeout_s=timeout_s)
        if self.refused(key) or key in self.values:
            self.check(who, said, key, self.values.get(key))
        else:
            assert said == []
            self.waiting.append(Waiting(who, self.number, key, 0, self.now + timeout_s))

    @rule(who=CLIENTS, prefix=NAMES, count=st.integers(0, 4), timeout_s=st.integers(0, 5), usual=USUAL)
    def collect(self, who: int, prefix: str, count: int, timeout_s: int, usual: dict[str, Any]) -> None:
        said = self.ask(who, "collect", prefix=prefix, count=count, timeout_s=timeout_s, **usual)
        if self.refused(prefix) or len(self.below(prefix)) >= count:
            self.check(who, said, prefix, without(usual, self.below(prefix)))
        else:
            assert said == []
            self.waiting.append(Waiting(who, self.number, prefix, count, self.now + timeout_s, usual))

    @rule(who=CLIENTS, prefix=NAMES)
    def remove(self, who: int, prefix: str) -> None:
        self.values = {key: value for key, value in self.values.items() if not key.startswith(prefix)}
        said = self.ask(who, "remove", prefix=prefix)
        assert [answer["ok"] for _, answer in said] == [None]

    @rule(who=CLIENTS, scope=NAMES)
    def watch(self, who: int, scope: str) -> None:
        said = self.ask(who, "watch", scope=scope, who=f"client {who}", rank=who, host="a")
        if not self.refused(scope):
            self.watched.setdefault(scope, {})[who] = None
            known = [answer["scope"] for _, answer in said if "event" in answer]
            assert sorted(known) == sorted(one for one in self.aborted if one.startswith(scope))

    @rule(who=CLIENTS, scope=NAMES)
    def unwatch(self, who: int, scope: str) -> None:
        self.watched.get(scope, {}).pop(who, None)
        assert [answer["ok"] for _, answer in self.ask(who, "unwatch", scope=scope)] == [None]

    @rule(who=CLIENTS, scope=NAMES)
    def abort(self, who: int, scope: str) -> None:
        cause = {"text": "why", "missing": [1], "waited_s": 2.0, "rank": 1, "host": "a"}
        self.expect_aborts(self.ask(who, "abort", scope=scope, cause=cause), [scope])

    @rule(who=CLIENTS)
    def leave(self, who: int) -> None:
        self.waiting = [waiting for waiting in self.waiting if waiting.who != who]
        scopes = [scope for scope, members in self.watched.items() if who in members]
        for members in self.watched.values():
            members.pop(who, None)
        self.table.leave(who)
        self.expect_aborts(self.taken(), scopes)

    def expect_aborts(self, said: list[tuple[int, dict[str, Any]]], scopes: list[str]) -> None:
        fresh = [scope for scope in scopes if scope not in self.aborted]
        self.aborted += fresh
        doomed = {
            (waiting.who, waiting.number)
            for waiting in self.waiting
            if any(waiting.name.startswith(scope) for scope in fresh)
        }
        told = {(who, answer["id"]) for who, answer in said if answer.get("error") == "aborted"}
        assert told == doomed
        self.waiting = [each for each in self.waiting if (each.who, each.number) not in doomed]
        heard = sorted((who, answer["scope"]) for who, answer in said if "event" in answer)
        watchers = [
            (who, scope)
            for scope in fresh
            for watched, members in self.watched.items()
            if scope.startswith(watched)
            for who in members
        ]
        assert heard == sorted(watchers)

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        left_s = self.table.expire()
        late = {(each.who, each.number) for each in self.waiting if each.until <= self.now}
        said = self.taken()
        assert {(who, answer["id"]) for who, answer in said if answer["error"] == "timeout"} == late
        self.waiting = [each for each in self.waiting if each.until > self.now]
        if self.waiting:
            assert left_s is not None
            assert left_s <= min(each.until for each in self.waiting) - self.now

    @rule(who=CLIENTS, op=st.sampled_from(OPERATIONS), operands=OPERANDS)
    def malformed(self, who: int, op: str, operands: dict[str, Any]) -> None:
        """On a table of its own: it may mean something by chance."""
        table = Table(lambda: self.now)
        message = json.loads(json.dumps({"id": 1, "op": op, **operands}))
        try:
            table.request(who, message)
        except FrameError:
            pass
        table.expire()
        table.leave(who)
        assert table._bytes >= 0

    @invariant()
    def nothing_is_held_by_mistake(self) -> None:
        for who in range(4):
            watched = sum(who in members for members in self.watched.values())
            assert self.table._held[who] == watched + sum(waiting.who == who for waiting in self.waiting)
            assert self.table.waits(who) == any(waiting.who == who for waiting in self.waiting)


def test_any_history_is_answered_as_the_model_foresees() -> None:
    run_state_machine_as_test(StoreHistory)
