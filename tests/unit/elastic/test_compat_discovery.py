"""The names of `horovod.runner.elastic.discovery` (R-DIS-1..5)."""

from __future__ import annotations

import pytest

from horovod.runner.elastic.discovery import (
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    HostManager,
    HostUpdateResult,
)


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("", {}),
        ("a", {"a": 4}),
        ("a:2", {"a": 2}),
        ("a:2\\nb\\nc:1", {"a": 2, "b": 4, "c": 1}),
        ("\\n\\na:2\\n\\n\\nb:3\\n\\n", {"a": 2, "b": 3}),
    ],
)
def test_a_script_prints_hosts(printed: str, found: dict[str, int]) -> None:
    script = HostDiscoveryScript(f"printf '{printed}'", 4)
    assert script.find_available_hosts_and_slots() == found


def test_hosts_keep_their_order() -> None:
    order = HostManager.order_available_hosts
    assert order(["c", "a", "b"], []) == ["c", "a", "b"]
    assert order(["d", "b", "a"], ["a", "b", "c"]) == ["a", "b", "d"]
    assert order([], ["a"]) == []


def test_an_update_says_what_has_changed() -> None:
    fixed = FixedHosts({})
    manager = HostManager(fixed)
    kinds = []
    for hosts in ({"a": 2}, {"a": 2, "b": 2}, {"b": 2}, {"b": 1, "c": 1}, {"b": 1, "c": 1}):
        fixed.set(hosts)
        kinds.append(manager.update_available_hosts())
        assert manager.current_hosts.host_slots == hosts
    kind = HostUpdateResult
    assert kinds == [kind.added, kind.added, kind.removed, kind.mixed, kind.no_update]


def test_a_snapshot_stays_what_it_was() -> None:
    fixed = FixedHosts({"a": 2, "b": 2})
    manager = HostManager(fixed)
    manager.update_available_hosts()
    before = manager.current_hosts
    fixed.set({"c": 1, "b": 3})
    manager.update_available_hosts()
    manager.blacklist("c")
    assert before.host_slots == {"a": 2, "b": 2}
    assert before.host_assignment_order == ("a", "b")
    assert before.count_available_slots() == 4
    with pytest.raises(TypeError):
        before.host_slots["a"] = 1  # type: ignore[index]


def test_a_host_that_is_left_out_is_not_in_the_next_snapshot() -> None:
    manager = HostManager(FixedHosts({"a": 2, "b": 2}))
    manager.update_available_hosts()
    event = manager.get_host_event("a")
    assert not event.is_set()
    manager.blacklist("a")
    assert event.is_set()
    assert manager.is_blacklisted("a")
    assert not manager.is_blacklisted("b")
    assert manager.current_hosts.available_hosts == {"b"}
    assert manager.current_hosts.get_slots("a") == 0
    assert manager.current_hosts.count_available_slots() == 2
    assert manager.update_available_hosts() == HostUpdateResult.no_update


def test_a_host_whose_cool_down_is_over_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("horovod.runner.elastic.discovery.time.monotonic", lambda: now)
    manager = HostManager(FixedHosts({"a": 2, "b": 2}), cooldown_range=(1, 2))
    manager.update_available_hosts()
    manager.blacklist("a")
    event = manager.get_host_event("a")
    now += 1.9
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    now += 0.2
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.current_hosts.host_assignment_order == ("b", "a")
    assert event.is_set()
    assert not manager.get_host_event("a").is_set()


@pytest.mark.parametrize("cooldown", [(0.5, 2), (1, 3601), (5, 2), "abc"])
def test_a_cool_down_that_makes_no_sense_is_refused(cooldown: object) -> None:
    with pytest.raises(ValueError, match="cool-down"):
        HostManager(FixedHosts({}), cooldown_range=cooldown)  # type: ignore[arg-type]


def test_what_a_discovery_raises_is_raised() -> None:
    class Broken(HostDiscovery):
        pass

    manager = HostManager(Broken())
    with pytest.raises(NotImplementedError):
        manager.update_available_hosts()
    assert manager.current_hosts.host_slots == {}
