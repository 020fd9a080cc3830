"""Training state that is saved in memory, restored after a failure and made equal in a new world."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from horovod.elastic.notification import HostUpdateResult
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["ObjectState", "State"]

_HOSTS, _PARTS = "hosts", "parts"
"""Tell the broadcasts of a check and of the begin of a sync from that of values, as all may have one name."""


class State:
    """State that training must not lose. Subclasses say how to ``save``, ``restore`` and ``sync`` it.

    Args:
        bcast_object: returns rank 0's argument on every rank; a collective.
        get_rank: returns the rank of this process.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._last_update = 0  # UNIX seconds of the newest change that all ranks know of
        self._committing = False  # what is live has just been saved
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Functions to call after the world has changed, in this order; for example to adapt the learning
        rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The world has changed: forget old messages, :meth:`reset`, call the callbacks."""
        self._drain()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Take note of a change of the hosts; may be called from any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """:meth:`save`, then :meth:`check_host_updates`. Failures roll back to the last commit, so what a
        commit costs is weighed against the work that a failure loses.

        Raises:
            HostsUpdatedInterrupt: as :meth:`check_host_updates`.
        """
        self.save()
        self._committing = True
        try:
            self.check_host_updates()
        finally:
            self._committing = False

    def check_host_updates(self) -> None:
        """Agree on whether the hosts have changed. A collective: all ranks must call it equally often.

        If they have, the state is saved, if it has not just been: newcomers get all of its parts from this
        moment.

        Only rank 0 is told about changes. Changes that are not newer than the last known one are ignored; all
        others that have arrived count as one.

        Raises:
            HostsUpdatedInterrupt: on all ranks together. ``skip_sync`` if hosts were only removed.
        """
        self._forget_saved()
        known, newest, kinds = self._last_update, self._last_update, HostUpdateResult.no_update
        for timestamp, kind in self._drain():
            if timestamp > known:
                newest = max(newest, timestamp)
                kinds |= HostUpdateResult(kind)
        known, newest, flags = self._agree((known, newest, int(kinds)))
        self._last_update = newest
        if newest > known:
            if not self._committing:
                self.save()
            self._note_saved()
            raise HostsUpdatedInterrupt(flags == HostUpdateResult.removed)

    def _note_saved(self) -> None:
        """For subclasses: what is saved is equal to what is live, and the world is left now."""

    def _forget_saved(self) -> None:
        """For subclasses: it may be so no more."""

    def _agree(self, numbers: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return rank 0's numbers on every rank. Subclasses whose framework broadcasts numbers do it faster:
        it is part of every commit.
        """
        match self._bcast_object((_HOSTS, *numbers)):
            case (str(what), int(known), int(newest), int(kinds)) if what == _HOSTS:
                return known, newest, kinds
            case _:
                raise HorovodInternalError(
                    "check_host_updates() met another broadcast of rank 0: all ranks must call sync(), "
                    "commit() and check_host_updates() equally often, in the same order.",
                    recoverable=False,
                )

    def save(self) -> None:
        """Keep a copy of the present state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the state of rank 0. A collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: the world has changed, and :meth:`sync` has not been called yet."""

    def _drain(self) -> list[tuple[int, int]]:
        messages = []
        while True:
            try:
                messages.append(self._host_messages.get_nowait())
            except queue.Empty:
                return messages


class ObjectState(State):
    """State made of Python objects that can be pickled: each keyword becomes an attribute.

    Values are saved by reference. What changes in place, such as a list that grows, is not undone by
    :meth:`restore`: assign a new one instead.
    """

    if TYPE_CHECKING:  # the keywords

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._assign_saved()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._assign_saved()

    def sync(self) -> None:
        """Take over what rank 0 has *saved*; changes since are lost, also on rank 0."""
        if self._saved_state:
            saved = self._bcast_object(self._saved_state)
            if not isinstance(saved, dict):
                raise _out_of_step()
            if saved.keys() != self._saved_state.keys():
                raise _other_state(self._saved_state, saved)
            self._saved_state = saved
            self._assign_saved()

    def _meet(self, parts: Iterable[str], told: Any = None) -> Any:
        """Be sure that rank 0 syncs the same state, before anything of it is overwritten. A collective.

        Args:
            parts: the names of all that this state keeps.
            told: by rank 0 to the others, if it syncs the same state.

        Returns:
            What rank 0 has told.

        Raises:
            HorovodInternalError: rank 0 syncs a state of other parts; not ``recoverable``.
        """
        mine = sorted(parts)
        match self._bcast_object((_PARTS, mine, told)):
            case (str(what), list(theirs), what_is_told) if what == _PARTS:
                if theirs != mine:
                    raise _other_state(mine, theirs)
                return what_is_told
            case dict() as theirs:
                raise _other_state(mine, theirs)
            case _:
                raise _out_of_step()

    def _assign_saved(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def _out_of_step() -> HorovodInternalError:
    return HorovodInternalError(
        "sync() met another broadcast of rank 0: all ranks must call sync(), commit() and "
        "check_host_updates() equally often, in the same order.",
        recoverable=False,
    )


def _other_state(mine: Iterable[str], theirs: Iterable[str]) -> HorovodInternalError:
    return HorovodInternalError(
        f"Rank 0 syncs another state than this rank: one of {', '.join(sorted(theirs)) or 'nothing'}, and "
        f"this one is of {', '.join(sorted(mine)) or 'nothing'}. A script with several states syncs them in "
        "the same order on all ranks. A process that joins later comes to the first function with "
        "@hvd.elastic.run, so keep all in one state, with one such function.",
        recoverable=False,
    )
