"""The order of hosts, and which are left out."""

from __future__ import annotations

import math

import pytest

from horovod.bootstrap.store.membership import HostUpdateResult
from horovod.launch.elastic.hosts import Hosts, checked_cooldown, in_stable_order


def test_kinds_of_updates() -> None:
    hosts = Hosts()
    kinds = [
        hosts.update(found)
        for found in ({"a": 2}, {"a": 2, "b": 2}, {"b": 2}, {"b": 1, "c": 1}, {"b": 1, "c": 1}, {})
    ]
    added, removed = HostUpdateResult.added, HostUpdateResult.removed
    assert kinds == [added, added, removed, HostUpdateResult.mixed, HostUpdateResult.no_update, removed]


def test_hosts_keep_their_order() -> None:
    assert in_stable_order({"c": 1, "b": 1, "a": 1}, ["a", "x", "b"]) == ["a", "b", "c"]
    hosts = Hosts()
    hosts.update({"a": 1, "b": 1})
    hosts.update({"c": 1, "b": 1, "a": 1})
    assert hosts.names == ("a", "b", "c")
    hosts.update({"c": 1, "b": 1})
    hosts.update({"a": 1, "b": 1, "c": 1})
    assert hosts.names == ("b", "c", "a")


def test_a_blacklisted_host_is_left_out() -> None:
    hosts = Hosts()
    hosts.update({"a": 2, "b": 1})
    before = hosts.names
    assert hosts.blacklist("a", 5.0) == math.inf
    assert before == ("a", "b")  # what was taken before does not change
    assert hosts.names == ("b",)
    assert hosts.slots("a") == []
    assert hosts.total() == 1
    assert hosts.update({"a": 3, "b": 1}) == HostUpdateResult.no_update
    assert hosts.readmit(1e9) == []


def test_the_cool_down_doubles() -> None:
    hosts = Hosts((1.0, 100.0), uniform=lambda: 0.5)
    hosts.update({"a": 1})
    for delay_s in (2.5, 4.5, 8.5, 16.5, 32.5, 64.5, 100.0, 100.0):
        assert hosts.blacklist("a", 1000.0) == 1000.0 + delay_s
        assert hosts.blacklist("a", 1001.0) == 1000.0 + delay_s  # does not get longer
        assert hosts.next_readmission() == 1000.0 + delay_s
        assert hosts.readmit(1000.0 + delay_s - 0.01) == []
        assert hosts.readmit(1000.0 + delay_s) == ["a"]
        assert hosts.slots("a") == [0]


def test_the_range_is_kept() -> None:
    hosts = Hosts((3.0, 4.0), uniform=lambda: 0.99)
    assert hosts.blacklist("a", 0.0) == 4.0


def test_a_host_that_comes_back_is_the_last_one() -> None:
    hosts = Hosts((1.0, 2.0), uniform=lambda: 0.0)
    hosts.update({"a": 1, "b": 1})
    hosts.blacklist("a", 0.0)
    hosts.update({"a": 1, "b": 1, "c": 1})
    assert list(hosts.names) == ["b", "c"]
    assert hosts.readmit(2.0) == ["a"]
    assert list(hosts.names) == ["b", "c", "a"]


def test_a_host_that_is_gone_does_not_come_back() -> None:
    hosts = Hosts((1.0, 2.0), uniform=lambda: 0.0)
    hosts.update({"a": 1})
    hosts.blacklist("a", 0.0)
    hosts.update({})
    assert hosts.readmit(2.0) == []
    assert hosts.update({"a": 1}) == HostUpdateResult.added


def test_slots_are_left_out_one_by_one() -> None:
    hosts = Hosts((1.0, 10.0), uniform=lambda: 0.0)
    hosts.update({"a": 3})
    assert hosts.leave_out("a", 1, 0.0) == 2.0
    assert hosts.slots("a") == [0, 2]
    assert hosts.readmit(2.0) == ["a"]
    assert hosts.slots("a") == [0, 1, 2]
    assert hosts.leave_out("a", 1, 2.0) == 6.0
    assert hosts.leave_out("a", 0, 2.0) == 4.0


@pytest.mark.parametrize(
    ("given", "found"), [(None, None), ([1, 2], (1.0, 2.0)), ((3600, 3600), (3600.0, 3600.0))]
)
def test_ranges(given: list[float] | None, found: tuple[float, float] | None) -> None:
    assert checked_cooldown(given) == found


@pytest.mark.parametrize("given", [(0, 1), (1, 3601), (2, 1), (1,), (1, 2, 3), "ab", 5, (math.nan, 2)])
def test_ranges_that_are_none(given: object) -> None:
    with pytest.raises(ValueError, match="cool-down range"):
        checked_cooldown(given)  # type: ignore[arg-type]
