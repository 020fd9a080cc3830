"""A line on the terminal that tells how far the job is."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from horovod.launch.output.console import Console

__all__ = ["Status"]

_INTERVAL_S = 0.2
_FIRST_AFTER_S = 0.5  # a job that ends sooner needs no such line
_JOIN_S = 0.5


class Status:
    """Shows itself while it is entered, if it is wanted; the numbers are set by whoever knows them.

    A thread of its own draws: where the terminal takes no more, nobody else waits for it.
    """

    def __init__(self, console: Console, *, wanted: bool | None, hosts: int, ranks: int) -> None:
        self.reached = 0
        """Hosts on which ranks can be started."""
        self.running = 0
        self.ended = 0
        self.ending = False
        self.instead = ""
        """Text in place of the numbers, if it is not empty."""
        self._hosts = hosts
        self._ranks = ranks
        self._footer = console.footer if wanted is not False else None
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, name="status", daemon=True)

    def text(self) -> str:
        elapsed_s = int(time.monotonic() - self._began)
        clock = f"{elapsed_s // 3600}:{elapsed_s // 60 % 60:02}:{elapsed_s % 60:02}"
        if self.instead:
            return f"horovodrun {clock}  {self.instead}"
        if self.reached < self._hosts:
            return f"horovodrun {clock}  reaching hosts: {self.reached} of {self._hosts}"
        where = f" on {self._hosts} hosts" if self._hosts > 1 else ""
        if self.ending:
            return f"horovodrun {clock}  ending ranks{where}: {self.running} of {self._ranks} still run"
        if self.running + self.ended < self._ranks:
            return f"horovodrun {clock}  starting ranks{where}: {self.running} of {self._ranks} run"
        return f"horovodrun {clock}  {self.running} of {self._ranks} ranks run{where}"

    def __enter__(self) -> Status:
        if self._footer is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._footer is not None:
            self._thread.join(_JOIN_S)
            if not self._thread.is_alive():
                self._footer.erase()

    def _show(self) -> None:
        assert self._footer is not None
        wait_s = _FIRST_AFTER_S
        while not self._stop.wait(wait_s):
            wait_s = _INTERVAL_S
            self._footer.show(self.text())
