"""Who is named when ranks fail, with stand-ins for Ray and the actors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from horovod.errors import HorovodInternalError

pytest.importorskip("ray", reason="Ray is not installed")

from ray.exceptions import RayActorError, RayTaskError

from horovod.ray import failures
from horovod.ray.failures import ActorFailed, Member, await_members

LIMIT_S = 30.0


def raised(error: Exception) -> RayTaskError:
    return RayTaskError("execute", "a traceback", error)


class Answer:
    """What a rank returns, or fails with, when it does."""

    def __init__(self, value: Any, *, now: bool = True) -> None:
        self.value = value
        self.there, self.read = threading.Event(), threading.Event()
        if now:
            self.there.set()


class Ranks:
    """In the place of Ray."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.members = [Member(rank, "node", "host", Mock()) for rank in range(len(answers))]
        self.killed = threading.Event()

    def wait(
        self, references: Sequence[Answer], num_returns: int, timeout: float
    ) -> tuple[list[Answer], list[Answer]]:
        references[-1].there.wait(0 if any(each.there.is_set() for each in references) else timeout)
        done = [each for each in references if each.there.is_set()][:num_returns]
        return done, [each for each in references if each not in done]

    def get(self, reference: Answer) -> Any:
        reference.read.set()
        if isinstance(reference.value, BaseException):
            raise reference.value
        return reference.value

    def kill(self, actor: Any) -> None:
        actor.killed()
        self.killed.set()

    def ended(self) -> list[int]:
        return [each.rank for each in self.members if each.actor.killed.called]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    def made(*answers: Answer, patience_s: float = LIMIT_S) -> Ranks:
        there = Ranks(*answers)
        monkeypatch.setattr(failures, "ray", there)
        for name in ("_PATIENCE_S", "_CAUSE_S"):
            monkeypatch.setattr(failures, name, patience_s)
        return there

    return made


def test_a_slow_callback_does_not_hide_the_cause(ranks: Callable[..., Ranks]) -> None:
    """The victim is heard of first; the cause comes while the callback is busy."""
    cause = Answer(RayActorError(), now=False)
    there = ranks(cause, Answer(raised(HorovodInternalError("rank 0 is gone"))))

    def tell() -> None:
        there.answers[1].read.wait(LIMIT_S)
        cause.there.set()
        assert cause.read.wait(LIMIT_S), "nobody looks while a callback is busy"

    with pytest.raises(ActorFailed, match=r"rank 0 .* has died\. Failed as well: 1\.") as error:
        await_members(there.answers, there.members, tell)
    assert error.value.rank == 0
    assert there.ended() == []


def test_ranks_are_ended_while_a_callback_is_busy(ranks: Callable[..., Ranks]) -> None:
    there = ranks(Answer(1, now=False), Answer(raised(ValueError("boom"))), patience_s=0)

    def tell() -> None:
        assert there.killed.wait(LIMIT_S), "the others still run"

    with pytest.raises(ActorFailed, match=r"rank 1 .* ValueError: boom\. 1 rank that still ran was ended"):
        await_members(there.answers, there.members, tell)
    assert there.ended() == [0]


def test_what_has_come_when_patience_ends_is_heard(ranks: Callable[..., Ranks]) -> None:
    there = ranks(
        Answer(raised(HorovodInternalError("lost"))), Answer(RayActorError()), Answer(3), patience_s=0
    )
    with pytest.raises(ActorFailed, match=r"rank 1 .* has died\. Failed as well: 0\."):
        await_members(there.answers, there.members)
    assert there.ended() == []


@pytest.mark.parametrize("error", [KeyError("callback"), SystemExit(3)])
def test_a_callback_that_fails_ends_the_ranks(ranks: Callable[..., Ranks], error: BaseException) -> None:
    there = ranks(Answer(0), Answer(1, now=False), Answer(2, now=False))

    def tell() -> None:
        if there.answers[0].read.is_set():
            raise error

    with pytest.raises(type(error)):
        await_members(there.answers, there.members, tell)
    assert there.ended() == [1, 2]


def test_a_result_that_runs_code_when_it_is_read_may_end_the_call(ranks: Callable[..., Ranks]) -> None:
    there = ranks(Answer(KeyboardInterrupt()), Answer(1, now=False))
    with pytest.raises(KeyboardInterrupt):
        await_members(there.answers, there.members, lambda: None)
    assert there.ended() == [1]


@pytest.mark.parametrize("tell", [None, lambda: None], ids=["none", "callback"])
def test_results_come_in_the_order_of_ranks(ranks: Callable[..., Ranks], tell: Any) -> None:
    late = Answer("late", now=False)
    there = ranks(late, Answer("early"))

    def come() -> None:
        there.answers[1].read.wait(LIMIT_S)
        late.there.set()

    threading.Thread(target=come).start()
    assert await_members(there.answers, there.members, tell) == ["late", "early"]
    assert await_members([], []) == []
