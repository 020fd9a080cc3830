"""Requests that the launcher may make of an agent. Anything else is refused with a reason: if a request were
carried out in part, nobody would end the ranks that it has started. `Intake` divides what comes from the
launcher into requests, and the call that may be among them.

First comes the plan (see `Plan`), then `{"end": signum}`, `{"kill": true}`, `{"signal": signum}` (for ranks
with a handler), `{"taken": bytes}` (of output) or `{"beat": true}`. Before a plan for another host whose
ranks call a function comes `{"call": bytes}`, and then these bytes. A plan that stays open is followed by any
number of `{"start": [rank, ...]}` and `{"end": signum, "workers": [number, ...]}`, until `{"close": true}`;
the call may come until the first start. `{"input": text}` is for the standard input of the one rank that is
`fed`; the empty text ends it.

In place of a plan `{"attach": name}` asks for the agent that waits at the reconnect socket of this name: what
is said from then on is said to it, and by it.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace as Fields

from horovod.bootstrap.records import Malformed, fields, listed, mapped, seconds, text, truth, whole
from horovod.launch.agent.terms import MOST_LINE_BYTES, MOST_RANKS, MOST_SILENCE_S, MOST_WINDOW_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias, TypeVar

    from horovod.bootstrap.records import Reader

    T = TypeVar("T")
    Request: TypeAlias = (
        "Plan | Attach | StartRanks | Close | Call | EndRanks | KillRanks | PassOn | Input | Taken | Beat"
    )

_MOST_NUMBER = (1 << 31) - 1
_STREAMS = ("stdout", "stderr", "result")


class Refusal(Exception):
    """A request that cannot be followed; the argument says why."""


class PlannedRank(Fields):
    """One rank. `streams`: descriptors for what it writes, on the launcher's own host, and there `stdin`: for
    what it reads, -1: nothing. `fed`: on another host, its standard input comes from the launcher.
    """

    rank: int
    environment: dict[bytes, bytes]
    stdin = -1
    fed = False

    @property
    def streams(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name in _STREAMS}


class Plan(Fields):
    """The ranks to start.

    On the launcher's own host every rank has descriptors for its stdout and stderr, and for its result if
    there is a `call`, which then is a descriptor, too; else that is -1. On another host the plan says:
    `directory` (to work in), `defaults` (environment where the host has none), `silence_s` (of the launcher
    that ends the job) and `window` (bytes of output). It may say that it stays `open`, and then have no ranks
    yet; and that ranks do not `inherit` the environment of this process. If it names a `reconnect` socket,
    the agent does not end with the launcher: it waits there for another one, for `patience_s`. If the call is
    the ranks' standard input (`call_is_input`), they have no result.
    """

    command: list[bytes]
    environment: dict[bytes, bytes]
    nofile: int
    workers: list[PlannedRank]
    directory: bytes
    defaults: dict[bytes, bytes]
    silence_s: float
    window: int
    call = -1
    call_is_input = False
    open = False
    inherit = True
    reconnect = ""
    patience_s = 0.0


class Attach(Fields):
    """Another agent is meant, which waits at the reconnect socket of this name."""

    socket: str


class StartRanks(Fields):
    """Further ranks, of an open plan."""

    workers: list[PlannedRank]


class Close(Fields):
    """No further ranks will come."""


class Call(Fields):
    """Announcement of the bytes that every rank of this host reads: so many follow."""

    size_bytes: int


class EndRanks(Fields):
    """Send all ranks a signal; SIGKILL follows. `ranks`: only these, of an open plan; None: all, and no
    further ones will come.
    """

    signum: int
    ranks: tuple[int, ...] | None = None


class KillRanks(Fields):
    """SIGKILL for all ranks, now."""


class PassOn(Fields):
    """Send a signal to the ranks that have a handler for it, and say which these are."""

    signum: int


class Input(Fields):
    """Next bytes for the rank that is `fed`; empty: the end."""

    data: bytes


class Taken(Fields):
    """The launcher has forwarded so much output, and has room for more."""

    size_bytes: int


class Beat(Fields):
    """The launcher is there."""


def understood(line: bytes, remote: bool) -> Request:
    """The request in a line. `remote`: the launcher is on another host.

    Raises:
        Refusal: it is none.
    """
    if len(line) > MOST_LINE_BYTES:
        raise Refusal(f"a line of more than {MOST_LINE_BYTES} bytes")
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"no JSON: {error}") from error
    if not isinstance(request, dict):
        raise Refusal("no request")
    try:
        return _asked(request, remote)
    except Malformed as error:
        raise Refusal(str(error)) from None


def _asked(request: dict[str, Any], remote: bool) -> Request:
    def field(name: str, reader: Reader[T]) -> T:
        return fields({name: reader})(request)[name]  # type: ignore[no-any-return]

    if "command" in request:
        return _plan(request, remote)
    if "call" in request and remote:
        return Call(size_bytes=field("call", whole(1, (1 << 63) - 1)))
    if "attach" in request and remote:
        return Attach(socket=field("attach", _SOCKET))
    if "start" in request and remote:
        return StartRanks(workers=field("start", _workers(())))
    if "end" in request:
        ranks = field("workers", listed(_NUMBER, MOST_RANKS)) if "workers" in request and remote else None
        return EndRanks(signum=field("end", _SIGNAL), ranks=ranks)
    if request.get("close") is True and remote:
        return Close()
    if request.get("kill") is True:
        return KillRanks()
    if "signal" in request:
        return PassOn(signum=field("signal", _SIGNAL))
    if "input" in request and remote:
        return Input(data=field("input", _any_bytes))
    if "taken" in request and remote:
        return Taken(size_bytes=field("taken", _WINDOW))
    if request.get("beat") is True:
        return Beat()
    raise Refusal(f"an unknown request: {[*request]!r:.80}")


def _plan(request: dict[str, Any], remote: bool) -> Plan:
    plan = Plan(**{"defaults": {}, "window": 0, **(_AWAY if remote else _HERE)(request)})
    if plan.reconnect and not plan.patience_s:
        raise Malformed("is missing", ("patience_s",))
    streams = () if remote else _STREAMS if plan.call >= 0 and not plan.call_is_input else _STREAMS[:2]
    plan.workers = fields({"workers": _workers(streams)})(request)["workers"]
    if not (plan.workers or plan.open):
        raise Refusal("workers: no ranks")
    return plan


def _workers(streams: tuple[str, ...]) -> Reader[list[PlannedRank]]:
    """Read ranks, each with these streams on the launcher's own host; none: they are on another one."""
    own: dict[str, Reader[Any]] = {"rank": _NUMBER, "environment": _environment}
    own.update(dict.fromkeys((*streams, "stdin"), _DESCRIPTOR) if streams else {"fed": truth})
    each = fields(own, vars(PlannedRank))

    def read(value: object) -> list[PlannedRank]:
        workers = [PlannedRank(**found) for found in listed(each, MOST_RANKS)(value)]
        if len({worker.rank for worker in workers}) != len(workers):
            raise Refusal("a rank is there twice")
        return workers

    return read


def _command(value: object) -> list[bytes]:
    words = listed(_bytes, MOST_RANKS)(value)
    if not words or not words[0]:
        raise Malformed("is empty")
    return list(words)


def _bytes(value: object) -> bytes:
    found = _any_bytes(value)
    if b"\0" in found:
        raise Malformed("is no text of bytes")
    return found


def _any_bytes(value: object) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode("latin-1")
    except UnicodeEncodeError:
        pass  # a character that stands for no byte
    raise Malformed("is no text of bytes")


def _environment(value: object) -> dict[bytes, bytes]:
    found = mapped(_bytes, _bytes)(value)
    if any(not key or b"=" in key for key in found):
        raise Malformed("has a variable without a name")
    return found


_NUMBER = whole(0, _MOST_NUMBER)
_DESCRIPTOR = whole(3, _MOST_NUMBER)
_SIGNAL = whole(1, 64)
_WINDOW = whole(1, MOST_WINDOW_BYTES)
_SECONDS = seconds(MOST_SILENCE_S, positive=True)
_SOCKET = text(100, lambda name: name.isascii() and name.replace("-", "").isalnum(), "is no name of a socket")
_PLAN = {"command": _command, "environment": _environment, "nofile": _NUMBER, "call_is_input": truth}
_HERE = fields({**_PLAN, "call": _DESCRIPTOR}, vars(Plan))
_STAY = {"open": truth, "inherit": truth, "reconnect": _SOCKET, "patience_s": _SECONDS}
_HOST = {"directory": _bytes, "defaults": _environment, "silence_s": _SECONDS, "window": _WINDOW}
_AWAY = fields({**_PLAN, **_STAY, **_HOST}, vars(Plan))


class Intake:
    """`memory_bytes`: what this host has; a call that is larger is refused before it comes."""

    def __init__(self, remote: bool, memory_bytes: int) -> None:
        self.call = -1
        """Memory with the call, once all of it may be there: when the next request is."""
        self._remote = remote
        self._memory_bytes = memory_bytes
        self._input = bytearray()
        self._call_left = 0  # bytes that are still to come
        self._refused = False

    def feed(self, data: bytes) -> None:
        """Take in what was read. After a refusal, everything is ignored."""
        if not self._refused:
            self._input += data

    def begin_again(self) -> None:
        """Begin again with another launcher's input; a call that is there stays."""
        self._input.clear()
        self._refused = False

    def rest(self) -> bytes:
        """Remove and return the bytes that form no complete request yet."""
        left = bytes(self._input)
        self._input.clear()
        return left

    def requests(self) -> list[Request]:
        """The complete requests. If one of them is refused, none is returned.

        Raises:
            Refusal: one does not, or there is no memory for a call.
        """
        try:
            return self._requests()
        except Refusal:
            self._refused = True
            self._input.clear()
            raise

    def _requests(self) -> list[Request]:
        self._keep_call()
        found: list[Request] = []
        at = 0
        while not self._call_left:
            end = self._input.find(b"\n", at)
            if end < 0:
                break
            request = understood(bytes(self._input[at:end]), self._remote)
            at = end + 1
            if isinstance(request, Call):
                self._begin_call(request.size_bytes)
                del self._input[:at]
                at = 0
                self._keep_call()
            else:
                found.append(request)
                if isinstance(request, Attach):  # what follows is for another agent
                    break
        del self._input[:at]
        if not self._call_left and len(self._input) > MOST_LINE_BYTES:
            raise Refusal("a line without an end")
        return found

    def _begin_call(self, size_bytes: int) -> None:
        if self.call >= 0:
            raise Refusal("a second call")
        if size_bytes > self._memory_bytes:
            raise Refusal(f"a call of {size_bytes} bytes: this host has {self._memory_bytes}")
        try:
            self.call = os.memfd_create("farandole-call")
        except AttributeError:
            raise Refusal("a call: it needs Python 3.8 on this host") from None
        except OSError as error:
            raise Refusal(f"a call: {error.strerror}") from error
        self._call_left = size_bytes

    def _keep_call(self) -> None:
        with memoryview(self._input) as whole:
            size = min(len(whole), self._call_left)
            left = whole[:size]
            try:
                while left:
                    left = left[os.write(self.call, left) :]
            except OSError as error:
                raise Refusal(f"no memory for the call: {error.strerror}") from error
            finally:
                left.release()
        self._call_left -= size
        del self._input[:size]


def memory_bytes() -> int:
    """Of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
