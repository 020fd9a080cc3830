from __future__ import annotations

import socket

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.launch.placement.hosts import (
    HostSlots,
    Slot,
    assign_ranks,
    expand_ranges,
    is_this_machine,
    named,
    parse_hostfile,
    parse_hosts,
    place_ranks,
)


def hosts(text: str) -> list[tuple[str, int]]:
    return [(host.name, host.slots) for host in parse_hosts(text)]


def placed(text: str, processes: int, limit: int | None = None) -> list[Slot]:
    return list(assign_ranks(parse_hosts(text), processes, limit))


def test_hosts_are_read_in_order_with_blanks_around() -> None:
    assert hosts("b:2, a.example-1_x:10 ,c:0") == [("b", 2), ("a.example-1_x", 10), ("c", 0)]


def test_repeated_hosts_are_merged() -> None:
    assert hosts("a:1,b:2,a:3") == [("a", 4), ("b", 2)]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        "a:x",
        "a:-1",
        "a:1,",
        "",
        ",a:1",
        "a:1:2",
        "a b:1",
        "[::1]",
        "::1:2",
        "a[1:2]:1",
        "a[1-]:2",
        "[1]:1:1",
    ],
)
def test_malformed_hosts_are_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"host:slots") as caught:
        parse_hosts(text)
    assert isinstance(caught.value, ValueError)


def test_ranges_stand_for_several_hosts() -> None:
    assert hosts("gpu[08-10,2]:4,a:1") == [("gpu08", 4), ("gpu09", 4), ("gpu10", 4), ("gpu2", 4), ("a", 1)]
    assert expand_ranges("r[1-2]n[3-4]-ib") == ["r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"]


@pytest.mark.parametrize("part", ["2-1", "1-99999"])
def test_unreadable_range_is_named(part: str) -> None:
    with pytest.raises(ConfigError, match=rf"{part} is not a range"):
        parse_hosts(f"a[{part}]:1")


def test_far_too_many_hosts_are_an_error_not_a_full_memory() -> None:
    with pytest.raises(ConfigError, match="more than 65536 hosts"):
        parse_hosts("a[1-60000][1-60000]:1")


def test_addresses_stand_in_brackets() -> None:
    found = parse_hosts("[fe80::1%eth0]:2,[::1]:1")
    assert found == (HostSlots("fe80::1%eth0", 2), HostSlots("::1", 1))
    assert named(found) == "[fe80::1%eth0]:2,[::1]:1"


def test_bare_names_of_a_hostfile_may_have_other_slots() -> None:
    assert parse_hostfile("a\nb slots=1\n", "f", default_slots=4) == (HostSlots("a", 4), HostSlots("b", 1))


def test_hostfile_becomes_hosts_in_file_order() -> None:
    assert parse_hostfile("b slots=2\na slots=4\n", "f") == (HostSlots("b", 2), HostSlots("a", 4))


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("h slots=2", 2),
        ("h slots = 2", 2),
        ("h", 1),
        ("h:3", 3),
        ("h slots=2 max_slots=4", 2),
        ("h max-slots=4 slots=2", 2),
        ("h:2 binding=user:0,3", 2),
        ("h:2 ifname=ib0", 2),
        ("  h slots=2  # four are broken", 2),
        ("\th\tslots=2\r", 2),
        ("h slots=1\n\n# h slots=5\nh slots=2", 3),
        ("h slots=0", 0),
        ("h:2 # Intel MPI", 2),
        ("h\nh\nh", 3),  # as PBS writes it
    ],
)
def test_hostfile_lines_of_other_launchers_are_understood(line: str, slots: int) -> None:
    assert parse_hostfile(line, "f") == (HostSlots("h", slots),)


@pytest.mark.parametrize("line", ["h slots=two", "h slots=", "h slots=-1", "h 4", "h slot=4", "h:x", "a,b"])
def test_unreadable_hostfile_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"jobs/hosts, line 2: cannot read"):
        parse_hostfile(f"# comment\n{line}\n", "jobs/hosts")


def test_hostfile_without_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no host"):
        parse_hostfile("\n# nothing\n", "f")


def test_ranks_fill_host_after_host() -> None:
    assert placed("a:2,b:2", 4) == [
        Slot("a", 0, 4, 0, 2, 0, 2),
        Slot("a", 1, 4, 1, 2, 0, 2),
        Slot("b", 2, 4, 0, 2, 1, 2),
        Slot("b", 3, 4, 1, 2, 1, 2),
    ]


def test_maximum_leaves_later_hosts_empty() -> None:
    slots = placed("a:2,b:2", 1, 2)
    assert [(slot.hostname, slot.size, slot.cross_size) for slot in slots] == [("a", 2, 1), ("a", 2, 1)]


def test_uneven_hosts_count_local_and_cross_separately() -> None:
    slots = placed("a:1,b:2", 3)
    assert [slot.local_size for slot in slots] == [1, 2, 2]
    assert [slot.cross_size for slot in slots] == [2, 2, 1]
    assert [slot.cross_rank for slot in slots] == [0, 1, 0]


def test_host_without_slots_is_passed_over() -> None:
    assert [slot.hostname for slot in placed("a:0,b:1", 1)] == ["b"]


def test_without_maximum_every_slot_is_used() -> None:
    assert len(placed("a:3,b:3", 2)) == 6


def test_local_size_is_what_was_placed_not_what_fits() -> None:
    assert [slot.local_size for slot in placed("a:2,b:9", 3, 3)] == [2, 2, 1]


def test_thousand_hosts_are_placed_completely() -> None:
    slots = assign_ranks([HostSlots(f"h{number}", 8) for number in range(1000)], 8000, 8000)
    assert slots[-1] == Slot("h999", 7999, 8000, 7, 8, 999, 1000)


def test_too_few_slots_name_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"5 processes were requested.* 4 slots \(a:1,b:3\)"):
        placed("a:1,b:3", 5, 5)


@pytest.mark.parametrize(
    "name",
    ["localhost", "127.0.0.1", "127.0.0.2", socket.gethostname(), "localhost.", f"{socket.gethostname()}."],
)
def test_this_machine_is_recognised(name: str) -> None:
    assert is_this_machine(name)


def test_address_of_another_machine_is_not_this_one() -> None:
    assert not is_this_machine("192.0.2.1")  # reserved for documentation: nobody has it


def test_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(LaunchError, match="Host no-such-host is unknown: Name or service not known"):
        is_this_machine("no-such-host")


def test_places_follow_from_the_hosts_of_the_ranks() -> None:
    assert list(place_ranks(["a", "a", "b", "b", "b"])) == placed("a:2,b:3", 5)
    # Dealt in turn, and one host with fewer.
    slots = place_ranks(["a", "b", "c", "a", "c"])
    assert [(slot.local_rank, slot.local_size) for slot in slots] == [(0, 2), (0, 1), (0, 2), (1, 2), (1, 2)]
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]
    assert [slot.rank for slot in slots] == [0, 1, 2, 3, 4]
