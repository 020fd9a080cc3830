"""Requests that the launcher may make of an agent. Anything else is refused with a reason: if a request were
carried out in part, nobody would end the ranks that it has started.

First comes the plan (see `Plan`), then `{"end": signum}`, `{"kill": true}`, `{"signal": signum}` (for ranks
with a handler), `{"taken": bytes}` (of output) or `{"beat": true}`. Before a plan for another host whose
ranks call a function comes `{"call": bytes}`, and then these bytes. A plan that stays open is followed by any
number of `{"start": [rank, ...]}` and `{"end": signum, "workers": [number, ...]}`, until `{"close": true}`;
the call may come until the first start. `{"input": text}` is for the standard input of the one rank that is
`fed`; the empty text ends it.

In place of a plan `{"attach": name}` asks for the agent that waits at a door of this host: what is said from
then on is said to it, and by it.
"""

from __future__ import annotations

import json

from horovod.launch.agent.terms import MOST_LINE_BYTES, MOST_RANKS, MOST_SILENCE_S, MOST_WINDOW_BYTES

TYPE_CHECKING = False  # importing typing would cost as much as all the rest
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Request: TypeAlias = "Plan | Attach | Start | Close | Call | End | Kill | PassOn | Input | Taken | Beat"

_MOST_NUMBER = (1 << 31) - 1
_STREAMS = ("stdout", "stderr", "result")


class Refusal(Exception):
    """A request that cannot be followed; the argument says why."""


class Worker:
    """One rank. `streams`: descriptors for what it writes, on the launcher's own host, and there `stdin`: for
    what it reads, -1: nothing. `fed`: on another host, its standard input comes from the launcher.
    """

    def __init__(self, rank: int, environment: dict[bytes, bytes], streams: dict[str, int]) -> None:
        self.rank = rank
        self.environment = environment
        self.streams = streams
        self.stdin = -1
        self.fed = False


class Plan:
    """The ranks to start.

    On the launcher's own host every rank has descriptors for its stdout and stderr, and for its result if
    there is a `call`, which then is a descriptor, too; else that is -1. On another host the plan says:
    `directory` (to work in), `defaults` (environment where the host has none), `silence_s` (of the launcher
    that ends the job) and `window` (bytes of output). It may say that it stays `open`, and then have no ranks
    yet; and that ranks do not `inherit` the environment of this process. If it has a `door`, the agent does
    not end with the launcher: it waits there for another one, for `patience_s`. If the call is the ranks'
    standard input (`call_is_input`), they have no result.
    """

    def __init__(self, request: dict[str, Any], remote: bool) -> None:
        words = _list(request, "command")
        self.command = [_bytes(word, "a word of the command") for word in words]
        if not self.command or not self.command[0]:
            raise Refusal("the command is empty")
        self.environment = _environment(request, "environment")
        self.nofile = _number(request, "nofile", 0, _MOST_NUMBER)
        self.directory = b""
        self.defaults: dict[bytes, bytes] = {}
        self.silence_s = 0.0
        self.window = 0
        self.call = -1
        self.call_is_input = _truth(request, "call_is_input", usual=False)
        self.open = False
        self.inherit = True
        self.door = ""
        self.patience_s = 0.0
        if remote:
            self.open = _truth(request, "open", usual=False)
            self.inherit = _truth(request, "inherit", usual=True)
            if "door" in request:
                self.door = _door(request, "door")
                self.patience_s = _seconds(request, "patience_s")
            self.directory = _bytes(request.get("directory"), "directory")
            self.defaults = _environment(request, "defaults")
            self.silence_s = _seconds(request, "silence_s")
            self.window = _number(request, "window", 1, MOST_WINDOW_BYTES)
        elif "call" in request:
            self.call = _number(request, "call", 3, _MOST_NUMBER)
        streams = () if remote else _STREAMS if self.call >= 0 and not self.call_is_input else _STREAMS[:2]
        self.workers = _workers(request, "workers", streams)
        if not (self.workers or self.open):
            raise Refusal("workers: no ranks")


class Attach:
    """Another agent is meant, which waits at this door."""

    def __init__(self, door: str) -> None:
        self.door = door


class Start:
    """Further ranks, of an open plan."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers


class Close:
    """No further ranks will come."""


class Call:
    """Announcement of the bytes that every rank of this host reads: so many follow."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class End:
    """Send all ranks a signal; SIGKILL follows. `ranks`: only these, of an open plan; None: all, and no
    further ones will come.
    """

    def __init__(self, signum: int, ranks: list[int] | None = None) -> None:
        self.signum = signum
        self.ranks = ranks


class Kill:
    """SIGKILL for all ranks, now."""


class PassOn:
    """Send a signal to the ranks that have a handler for it, and say which these are."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Input:
    """Next bytes for the rank that is `fed`; empty: the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Taken:
    """The launcher has forwarded so much output, and has room for more."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class Beat:
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
    if "command" in request:
        return Plan(request, remote)
    if "call" in request and remote:
        return Call(_number(request, "call", 1, (1 << 63) - 1))
    if "attach" in request and remote:
        return Attach(_door(request, "attach"))
    if "start" in request and remote:
        return Start(_workers(request, "start", ()))
    if "end" in request:
        signum = _number(request, "end", 1, 64)
        if "workers" not in request or not remote:
            return End(signum)
        return End(
            signum, [_in_range(each, "workers", 0, _MOST_NUMBER) for each in _list(request, "workers")]
        )
    if request.get("close") is True and remote:
        return Close()
    if request.get("kill") is True:
        return Kill()
    if "signal" in request:
        return PassOn(_number(request, "signal", 1, 64))
    if "input" in request and remote:
        return Input(_any_bytes(request["input"], "input"))
    if "taken" in request and remote:
        return Taken(_number(request, "taken", 1, MOST_WINDOW_BYTES))
    if request.get("beat") is True:
        return Beat()
    raise Refusal(f"an unknown request: {[*request]!r:.80}")


def _workers(request: dict[str, Any], name: str, streams: tuple[str, ...]) -> list[Worker]:
    workers = [_worker(each, streams) for each in _list(request, name)]
    if len({worker.rank for worker in workers}) != len(workers):
        raise Refusal(f"{name}: a rank is there twice")
    return workers


def _worker(value: object, streams: tuple[str, ...]) -> Worker:
    if not isinstance(value, dict):
        raise Refusal("workers: one is not described")
    descriptors = {stream: _number(value, stream, 3, _MOST_NUMBER) for stream in streams}
    worker = Worker(_number(value, "rank", 0, _MOST_NUMBER), _environment(value, "environment"), descriptors)
    if streams and "stdin" in value:
        worker.stdin = _number(value, "stdin", 3, _MOST_NUMBER)
    worker.fed = not streams and _truth(value, "fed", usual=False)
    return worker


def _list(request: dict[str, Any], name: str) -> list[Any]:
    value = request.get(name)
    if not isinstance(value, list) or len(value) > MOST_RANKS:
        raise Refusal(f"{name} is no list of at most {MOST_RANKS}")
    return value


def _number(request: dict[str, Any], name: str, least: int, most: int) -> int:
    return _in_range(request.get(name), name, least, most)


def _in_range(value: object, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # a truth value is none
        raise Refusal(f"{name} is no number from {least} to {most}")
    return value


def _door(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if (
        isinstance(value, str)
        and 0 < len(value) <= 100
        and value.replace("-", "").isalnum()
        and value.isascii()
    ):
        return value
    raise Refusal(f"{name} is no name of a door")


def _truth(request: dict[str, Any], name: str, *, usual: bool) -> bool:
    value: Any = request.get(name, usual)
    if type(value) is not bool:
        raise Refusal(f"{name} is neither true nor false")
    return value


def _seconds(request: dict[str, Any], name: str) -> float:
    value: Any = request.get(name)
    if type(value) not in (int, float) or not 0.0 < value <= MOST_SILENCE_S:
        raise Refusal(f"{name} is no number of seconds")
    return float(value)


def _bytes(value: object, what: str) -> bytes:
    found = _any_bytes(value, what)
    if b"\0" in found:
        raise Refusal(f"{what} is no text of bytes")
    return found


def _any_bytes(value: object, what: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode("latin-1")
    except UnicodeEncodeError:
        pass  # a character that stands for no byte
    raise Refusal(f"{what} is no text of bytes")


def _environment(request: dict[str, Any], name: str) -> dict[bytes, bytes]:
    value = request.get(name)
    if not isinstance(value, dict):
        raise Refusal(f"{name} is no environment")
    found = {_bytes(key, name): _bytes(each, name) for key, each in value.items()}
    if any(not key or b"=" in key for key in found):
        raise Refusal(f"{name} has a variable without a name")
    return found
