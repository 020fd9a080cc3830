"""Registration of process sets, over an engine that always agrees."""

from __future__ import annotations

import threading

import pytest
from tests.unit.torch.conftest import MakeWorld
from tests.unit.torch.fake_engine import FakeEngine

import horovod.torch as hvd
from horovod.config import Config
from horovod.errors import HorovodInternalError, ProcessSetError, from_core
from horovod.runtime import lifecycle
from horovod.runtime.process_set import init_with_sets

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Rank 0 of 4; sets given to ``init`` exist from the start."""
    engine = make_world(4)

    def start(process_sets: list[list[int]], communicator: object = None) -> lifecycle.Runtime:
        known = list(engine.sets.values())
        for ranks in process_sets:
            if ranks not in known and len(engine.sets) == len(known):
                engine.sets[len(engine.sets)] = ranks
                known.append(ranks)
        monkeypatch.setattr(lifecycle, "start", lambda process_sets, communicator=None: lifecycle.current())
        return lifecycle.current()

    monkeypatch.setattr(lifecycle, "start", start)
    return engine


def test_sets_are_numbered_from_1_in_their_order(world: FakeEngine) -> None:
    sets = [hvd.ProcessSet([3, 2]), hvd.ProcessSet([0])]
    hvd.init(process_sets=sets)
    assert [each.process_set_id for each in sets] == [1, 2]
    assert [each.size() for each in sets] == [2, 1]
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [2, 3], 2: [0]}


@pytest.mark.parametrize("second", [[1, 0], [0, 1, 2, 3], range(3, -1, -1)])
def test_a_duplicate_leaves_the_world_and_a_clean_list_works(world: FakeEngine, second: list[int]) -> None:
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet(second)]
    with pytest.raises(ValueError, match=r"process_sets\[1\] .* is a duplicate"):
        hvd.init(process_sets=sets)
    assert hvd.is_initialized()
    assert [each.process_set_id for each in sets] == [None, None]
    hvd.init(process_sets=sets[:1])
    assert sets[0].process_set_id == 1


def test_a_second_init_finds_the_sets_again(world: FakeEngine) -> None:
    hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([1, 2])])
    again = hvd.ProcessSet([2, 1])
    hvd.init(process_sets=[again])
    assert again.process_set_id == 2
    new = hvd.ProcessSet([1, 3])
    with pytest.raises(KeyError):
        hvd.init(process_sets=[again, new])
    assert new.process_set_id is None


def test_what_is_no_set_is_refused(world: FakeEngine) -> None:
    for wrong in ([[0, 1]], [0], "static"):
        with pytest.raises(ValueError):
            hvd.init(process_sets=wrong)
    with_comm = hvd.ProcessSet([0])
    with_comm.mpi_comm = object()
    for refused in (lambda: hvd.init(process_sets=[with_comm]), lambda: hvd.add_process_set(with_comm)):
        with pytest.raises(NotImplementedError):
            refused()


def test_adding_returns_the_object_and_ranks_become_one(world: FakeEngine) -> None:
    some = hvd.ProcessSet([1, 0])
    assert hvd.add_process_set(some) is some
    assert some.process_set_id == 1
    other = hvd.add_process_set([3, 1])
    assert (other.process_set_id, other.ranks, other.size()) == (2, [1, 3], 2)
    assert other.included() is False
    with pytest.raises(ValueError, match="not part of provided process set"):
        other.rank()
    assert str(other) == "ProcessSet(process_set_id=2, ranks=[1, 3], mpi_comm=None)"


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 1], "duplicate process set"),
        ([3, 2, 1, 0], "duplicate process set"),
        ([1, 1], "more than once"),
        ([1, 4], "ranks are 0 to 3"),
        ([-1], "ranks are 0 to 3"),
        ([], "no ranks"),
        ([0.5], "type int"),
    ],
)
def test_sets_that_cannot_be_added(world: FakeEngine, ranks: list[int], message: str) -> None:
    hvd.add_process_set([0, 1])
    with pytest.raises(ValueError, match=message):
        hvd.add_process_set(ranks)
    assert len(world.sets) == 2


def test_removing_invalidates_every_object_and_frees_the_number(world: FakeEngine) -> None:
    some = hvd.add_process_set([0, 1])
    same = hvd.ProcessSet([0, 1])
    init_with_sets([same])
    assert same.process_set_id == 1
    assert hvd.remove_process_set(some) is True
    assert [each.process_set_id for each in (some, same)] == [None, None]
    assert hvd.remove_process_set(some) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.add_process_set(some).process_set_id == 1


def test_removing_an_unknown_number_is_false(world: FakeEngine) -> None:
    some = hvd.ProcessSet([0])
    some.process_set_id = 77
    assert hvd.remove_process_set(some) is False
    assert some.process_set_id is None


def test_changes_need_the_dynamic_mode(world: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    some = hvd.add_process_set([0])
    runtime = lifecycle.current()
    fixed = lifecycle.Runtime(runtime.engine, runtime.topology, Config())
    monkeypatch.setattr(lifecycle, "current", lambda: fixed)
    for refused in (lambda: hvd.add_process_set([1]), lambda: hvd.remove_process_set(some)):
        with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
            refused()
    assert some.process_set_id == 1


def test_changes_before_init_are_value_errors(no_world: None) -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.add_process_set([0])
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False


@pytest.mark.parametrize("code", ["mismatch", "shutdown"])
def test_a_change_that_fails_is_a_value_error_that_elastic_runs_recover_from(
    world: FakeEngine, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def fail(handle: int) -> None:
        raise from_core(code, "rank 1 said [2]")

    monkeypatch.setattr(world, "wait", fail)
    some = hvd.ProcessSet([0])
    with pytest.raises(ProcessSetError, match=r"shutting down.* rank 1 said") as info:
        hvd.add_process_set(some)
    assert isinstance(info.value, ValueError)
    assert isinstance(info.value, HorovodInternalError)
    assert some.process_set_id is None


def test_a_lost_rank_is_told_as_such(world: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise from_core("peer_lost", "rank 1 was lost", rank=1)

    monkeypatch.setattr(world, "wait", fail)
    with pytest.raises(HorovodInternalError) as info:
        hvd.add_process_set([0])
    assert not isinstance(info.value, ValueError)


def test_one_thread_at_a_time_changes_sets(world: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread sees the set of the first one, although both called before it was there."""
    begun, go_on = threading.Event(), threading.Event()
    outcomes: list[str] = []
    plain_wait = world.wait

    def wait(handle: int) -> object:
        begun.set()
        assert go_on.wait(10)
        return plain_wait(handle)

    def add() -> None:
        try:
            hvd.add_process_set([0, 1])
            outcomes.append("added")
        except ValueError:
            outcomes.append("duplicate")

    monkeypatch.setattr(world, "wait", wait)
    threads = [threading.Thread(target=add) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes) == ["added", "duplicate"]
