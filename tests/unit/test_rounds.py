from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from horovod.bootstrap.place.topology import RankPlace
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.rounds import claim_round
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.errors import RendezvousError

KEY = bytes(32)
HERE = RankPlace("test", 1, 2, None, None, "here")
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def store() -> Iterator[StoreClient]:
    with StoreServer(KEY) as server, StoreClient(server.address, KEY, 5.0, "test") as client:
        yield client


def owner_in(store: StoreClient) -> dict[str, Any]:
    """Claim round 0 and return what this process left there as its owner."""
    claim_round(store, "0", HERE, {})
    owner: dict[str, Any] = store.get("epoch/0/last/1", 0.0)["owner"]
    return owner


def test_a_process_never_joins_the_same_round_twice(store: StoreClient) -> None:
    scopes = [claim_round(store, "0", HERE, {}).scope for _ in range(3)]
    assert scopes == [f"epoch/0/round/{number}/" for number in range(3)]
    assert claim_round(store, "1", HERE, {}).scope == "epoch/1/round/0/"


def test_rounds_that_were_given_up_are_left_behind(store: StoreClient) -> None:
    for number in (0, 1):
        store.abort(f"epoch/0/round/{number}/", Cause("no"))
    joined = claim_round(store, "0", HERE, {})
    assert (joined.scope, joined.previous) == ("epoch/0/round/2/", "epoch/0/round/1/")


@pytest.mark.parametrize("late", [True, False], ids=["has joined", "is just joining"])
def test_second_process_of_a_rank_is_told_and_the_first_one_hears_of_it(
    store: StoreClient, late: bool
) -> None:
    other = {**owner_in(store), "boot_id": "another machine", "host": "there", "pid": 77}
    store.remove("epoch/0/")
    store.set("epoch/0/round/0/identity/1", {"owner": other})
    if late:
        store.set("epoch/0/last/1", {"round": 0, "owner": other})
    with pytest.raises(RendezvousError, match=r"Two processes .* rank 1: process 77 on host there"):
        claim_round(store, "0", HERE, {})
    with pytest.raises(RendezvousError, match="Two processes"):
        store.collect("epoch/0/round/0/identity/", 2, 5.0)


@pytest.mark.parametrize("epoch", ["0", "plan-2"])
def test_a_process_that_kept_the_rank_of_an_earlier_world_does_not_keep_it_for_ever(
    store: StoreClient, epoch: str
) -> None:
    late = {**owner_in(store), "boot_id": "another machine", "host": "there", "pid": 77}
    store.set(f"epoch/{epoch}/last/1", {"round": 0, "owner": late})
    with pytest.raises(RendezvousError, match=r"Two processes .* rank 1") as found:
        claim_round(store, epoch, HERE, {})
    assert ("rank for an earlier world?" in str(found.value)) == (epoch != "0")
    store.set(f"epoch/{epoch}/last/0", {"round": 1, "owner": late})  # it has asked for its rank
    assert claim_round(store, epoch, HERE, {}).scope == f"epoch/{epoch}/round/1/"


def test_rank_of_a_process_that_has_ended_can_be_taken_over(store: StoreClient) -> None:
    ended = {**owner_in(store), "started": 1}  # the same number, but another process
    store.set("epoch/0/last/1", {"round": 0, "owner": ended})
    assert claim_round(store, "0", HERE, {}).scope == "epoch/0/round/1/"


def test_another_living_process_of_this_machine_is_not_taken_for_dead(store: StoreClient) -> None:
    mine = owner_in(store)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            with open(f"/proc/{sleeper.pid}/stat", encoding="ascii") as file:
                started = int(file.read().rpartition(")")[2].split()[19])
            other = {**mine, "pid": sleeper.pid, "started": started}
            store.set("epoch/0/last/1", {"round": 0, "owner": other})
            with pytest.raises(RendezvousError, match=f"process {sleeper.pid} on host here"):
                claim_round(store, "0", HERE, {})
        finally:
            sleeper.kill()
