"""Signals that end nothing, on their way to the ranks, and what the user is told of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence

from horovod.launch.contracts.events import PassedOn
from horovod.launch.contracts.signals import Signals, signal_name
from horovod.launch.output.console import Console

__all__ = ["Passing", "listed"]

_HARMLESS = (signal.SIGWINCH, signal.SIGCONT)
"""Terminals send these without being asked, and a process without a handler does nothing about them."""


def listed(ranks: Sequence[int]) -> str:
    """These ranks in a sentence."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"


class Passing:
    """Hands what has arrived in `signals` to `pass_on`, and says once which ranks have no handler for it.

    Args:
        name: the rank that a number in events means; by default the same.
    """

    def __init__(
        self,
        signals: Signals,
        console: Console,
        pass_on: Callable[[int], None],
        name: Callable[[int], int] = lambda number: number,
    ) -> None:
        self._signals = signals
        self._console = console
        self._pass_on = pass_on
        self._name = name
        self._seen = 0
        self._ended = False  # a rank, at least
        self._awaited: dict[int, set[int]] = {}  # by signal: of whom nothing has been heard
        self._got: dict[int, list[int]] = {}
        self._without: dict[int, list[int]] = {}
        self._told: set[str] = set()

    def forward(self, running: Collection[int], *, ending: bool = False) -> None:
        """Pass on what has come since the last call. `running`: the ranks that there are."""
        for signum in self._signals.passing[self._seen :]:
            self._seen += 1
            if ending:
                self._console.narrate(f"{signal_name(signum)} goes to no rank: they are being ended")
            elif running:
                self._awaited.setdefault(signum, set()).update(running)
                self._pass_on(signum)
            elif signum not in _HARMLESS:
                why = "all have ended" if self._ended else "none has been started yet"
                self._console.tell(f"{signal_name(signum)} goes to no rank: {why}")

    def hear(self, event: PassedOn) -> None:
        signum = event.signum
        self._got.setdefault(signum, []).extend(map(self._name, event.ranks))
        self._without.setdefault(signum, []).extend(map(self._name, event.others))
        self._awaited.setdefault(signum, set()).difference_update(event.ranks, event.others)
        self._tell_when_all_are_known()

    def leave(self, ranks: Collection[int]) -> None:
        """These ranks have ended, or are lost."""
        self._ended = self._ended or bool(ranks)
        if self._awaited:
            for awaited in self._awaited.values():
                awaited.difference_update(ranks)
            self._tell_when_all_are_known()

    def _tell_when_all_are_known(self) -> None:
        for signum in [signum for signum, awaited in self._awaited.items() if not awaited]:
            del self._awaited[signum]
            got = sorted(self._got.pop(signum, ()))
            self.tell(signum, got, sorted(self._without.pop(signum, ())))

    def tell(self, signum: int, got: Sequence[int], without: Sequence[int]) -> None:
        """Say what has become of it."""
        name = signal_name(signum)
        if got:
            self._console.narrate(f"{name} passed on to {listed(got)}")
        if not without or signum in _HARMLESS:
            return
        who, has = listed(without), "has" if len(without) == 1 else "have"
        if signum == signal.SIGQUIT:
            text = f"{who} {has} no stack to show: a Python program has one from its hvd.init() on"
        else:
            text = (
                f"{name} does not go to {who}, which {has} no handler for it (signal.signal(signal.{name}, "
                "...)) and would be ended by it"
            )
        if text not in self._told:
            self._told.add(text)
            self._console.tell(text)
