from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.network.groups import Machine, candidate_groups, control_edges, control_parent, split
from horovod.bootstrap.network.listening import connections_of
from horovod.bootstrap.trust.handshake import Purpose, Role


def machine(
    boot: str = "k", namespace: int = 1, uid: int = 0, host: str = "a", mode: str = "auto"
) -> Machine:
    return Machine(boot, namespace, uid, host, mode)


def test_same_kernel_namespace_and_user_share_memory() -> None:
    machines = [machine(), machine(boot="other"), machine(), machine(namespace=2), machine(uid=7), machine()]
    assert candidate_groups(machines) == [[0, 2, 5], [1], [3], [4]]


def test_launcher_host_names_do_not_matter_unless_asked_for() -> None:
    assert candidate_groups([machine(host="a"), machine(host="b")]) == [[0, 1]]
    assert candidate_groups([machine(host=h, mode="launcher") for h in "aba"]) == [[0, 2], [1]]


def test_single_puts_every_rank_alone() -> None:
    assert candidate_groups([machine(mode="single")] * 3) == [[0], [1], [2]]
    assert candidate_groups([machine(), machine(mode="single"), machine()]) == [[0, 2], [1]]


def test_one_failure_dissolves_its_group_only() -> None:
    assert split([[0, 2], [1, 3, 5], [4]], {3}) == [[0, 2], [1], [3], [4], [5]]
    assert split([[0, 1]], set()) == [[0, 1]]


def test_members_report_to_their_leader_and_leaders_to_rank_0() -> None:
    groups = [[0, 1], [2, 3], [4]]
    assert [control_parent(rank, groups) for rank in range(5)] == [None, 0, 0, 2, 0]
    with pytest.raises(ValueError, match="rank 5"):
        control_parent(5, groups)


def test_leaders_know_who_reports_to_them_without_looking_at_all() -> None:
    for count in (1, 2, 32, 33, 34, 65, 1100):
        groups = [[2 * index, 2 * index + 1] for index in range(count)]
        for index, group in enumerate(groups):
            parent, children = control_edges(index, groups)
            assert parent == control_parent(group[0], groups)
            assert all(control_parent(child, groups) == group[0] for child in children)
        assert sum(len(control_edges(index, groups)[1]) for index in range(count)) == count - 1


def test_many_groups_report_through_a_tree_of_32() -> None:
    groups = [[rank] for rank in range(1100)]
    assert control_parent(32, groups) == 0
    assert control_parent(33, groups) == 1
    assert control_parent(1099, groups) == 34
    assert [control_parent(rank, groups[:32]) for rank in range(1, 32)] == [0] * 31


@given(st.lists(st.integers(0, 60), min_size=1, max_size=120))
def test_control_tree_reaches_rank_0_from_everywhere(places: list[int]) -> None:
    groups = candidate_groups([machine(namespace=place) for place in places])
    assert sorted(rank for group in groups for rank in group) == list(range(len(places)))
    assert groups == sorted(groups)
    for rank in range(len(places)):
        seen: int | None = rank
        for _ in range(5):
            if seen is not None:
                seen = control_parent(seen, groups)
        assert seen is None


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40)
    | st.lists(
        st.integers(0, 1000), min_size=33, max_size=80
    ),  # so many groups that their leaders form a tree
    st.sampled_from([0, 1]),
)
def test_both_ends_agree_on_every_connection(places: list[int], connect_all: int) -> None:
    groups = candidate_groups([machine(namespace=place) for place in places])
    ends: dict[tuple[Purpose, bool], list[int]] = {}
    for rank in range(len(places)):
        at_start, late = connections_of(rank, groups, b"w" * 32, connect_all=connect_all)
        assert not late or connect_all
        for purposes in (at_start, late):
            for purpose in purposes:
                ends.setdefault((purpose, purposes is at_start), []).append(rank)
    for (purpose, _), ranks in ends.items():
        assert purpose.dialer > purpose.acceptor
        assert ranks == [purpose.acceptor, purpose.dialer]
    data = sum(1 for purpose, _ in ends if purpose.role is Role.DATA)
    assert data == sum(places[a] != places[b] for a in range(len(places)) for b in range(a))
    control = [at_start for purpose, at_start in ends if purpose.role is Role.CONTROL]
    assert control == [True] * (len(groups) - 1)


def test_a_large_world_starts_with_few_connections() -> None:
    groups = [[8 * host + index for index in range(8)] for host in range(512)]
    at_start, late = connections_of(5, groups, b"w" * 32, connect_all=128)
    others = sorted(purpose.dialer + purpose.acceptor - 5 for purpose in at_start)
    distances = {2**k for k in range(10)} | {512 - 2**k for k in range(10)}
    assert others == sorted(8 * host + 5 for host in distances - {0, 512})
    assert len(at_start) + len(late) == 511 * 8


@pytest.mark.parametrize("size", [128, 129])
def test_up_to_a_limit_everybody_is_connected_at_once(size: int) -> None:
    groups = [[rank] for rank in range(size)]
    assert bool(connections_of(1, groups, b"w" * 32, connect_all=128)[1]) is (size > 128)


@pytest.mark.parametrize("hosts", [2, 3, 5, 6, 7, 12, 16, 33])
def test_the_connections_of_the_start_are_those_of_pairing_and_trees(hosts: int) -> None:
    """Doubling, halving, dissemination and binomial trees go by powers of two; hosts beyond one fold."""
    groups = [[rank] for rank in range(hosts)]
    start = {
        rank: {
            p.dialer + p.acceptor - rank for p in connections_of(rank, groups, b"w" * 32, connect_all=1)[0]
        }
        for rank in range(hosts)
    }
    core = 1 << (hosts.bit_length() - 1)
    for rank in range(hosts):
        for step in (1 << k for k in range(hosts.bit_length())):
            if step < hosts:
                assert (rank + step) % hosts in start[rank]
            if rank < core and step < core and rank ^ step < hosts:
                assert rank ^ step in start[rank]
