"""The store's contents and its waiting, without sockets: requests go in, replies come out.

Requests are JSON objects with an ``id``, an ``op`` and the operands below. Replies carry the same ``id`` and
either ``ok`` or ``error``: ``timeout``, ``aborted``, or ``full`` at one of the limits below. An event (see
``watch``) has no ``id``.

    set key value                        ok: null
    get key timeout_s                    ok: value, once the key exists
    compare_and_set key expected value   ok: [swapped, value now]; expected null = the key must not exist
    add key amount                       ok: the new number; a key that does not exist counts as 0
    collect prefix count timeout_s       ok: {rest of the key: value}, once `count` keys begin with the
                                         prefix; with `usual`, a value, only those that are not that
    remove prefix                        ok: null
    watch scope who rank host            ok: null; `abort` of a scope in this one is an event here, also if it
                                         came before (then ahead of the reply), and the loss of this
                                         connection aborts the scope
    unwatch scope                        ok: null
    abort scope cause                    ok: null; what waits below the scope fails, and whatever asks later

A *scope* is a prefix of keys. The cause (see ``Cause``) that is given first stays: the others are
consequences.
"""

from __future__ import annotations

import collections
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from horovod.bootstrap.records import cut, listed, record, text, whole
from horovod.bootstrap.store.books import Collection, forget_beyond
from horovod.bootstrap.store.messages import FrameError, SharedBody, encode
from horovod.errors import RendezvousError

__all__ = ["MOST_KEY_CHARACTERS", "Cause", "Table", "read_cause"]

MOST_KEY_CHARACTERS = 4096
_MOST_BYTES = 1 << 30  # of keys and values: the identities of a hundred thousand ranks are a tenth
_MOST_HELD = 1024  # requests that wait and scopes that are watched, of one client; a rank has two or three
_MOST_TEXT_CHARACTERS = 1 << 16  # of a cause: it is repeated to many
_MOST_MISSING = 1 << 20
_MOST_IDLE = 64  # collections whose reply is kept though nobody waits for them
_MOST_WAYS = 4  # that one collection may be asked for in, by what is left out
_MOST_USUAL_BYTES = 64  # of what is left out
_MOST_KEPT_BYTES = 256 << 20  # of replies
_LONGEST_WAIT_S = 1e6  # no system waits for longer in one go
_KEY_COST_BYTES = 256  # about what an entry takes besides its texts
_RANK_COST_BYTES = 40  # a number and its place


_name = text(MOST_KEY_CHARACTERS)  # a key, or the beginning of keys
_who = cut(MOST_KEY_CHARACTERS)
_rank = whole(-(1 << 31), (1 << 31) - 1)
_Rank = Annotated[int, _rank]
_Text = Annotated[str, cut(_MOST_TEXT_CHARACTERS)]
_Missing = Annotated[tuple[int, ...], listed(_rank, _MOST_MISSING)]


class Cause(NamedTuple):
    """Cause of a scope's abort: a sentence, and the ranks that were waited for in vain, if that was it.
    ``rank`` and ``host``: the rank that failed; None and "": it is not known, or it was no single one.
    """

    text: _Text
    missing: _Missing = ()
    waited_s: float = 0.0
    rank: _Rank | None = None
    host: _Text = ""

    def error(self) -> RendezvousError:
        """Make the error for everybody who hears of the cause."""
        return RendezvousError(
            self.text,
            missing=self.missing,
            waited_s=self.waited_s,
            rank=self.rank,
            host=self.host or None,
        )

    @property
    def cost_bytes(self) -> int:
        """About what it takes."""
        return len(self.text) + len(self.host) + _RANK_COST_BYTES * len(self.missing)


read_cause = record(Cause, complete=True)


@dataclass(eq=False)
class _Waiter:
    """One request without an answer yet; ``count`` 0 = waits for the key itself, else for keys below it, and
    wants those that are not ``usual``.
    """

    who: int
    request_id: int
    key: str
    count: int
    deadline: float
    timeout_s: float
    usual: bytes | None = None


class Table:
    """Values, waiting requests and scopes. Connections are numbers; replies pile up in ``replies`` in
    order: for whom, and the parts of a frame.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, most_bytes: int = _MOST_BYTES) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._bytes = 0  # that keys and values take
        self._values: dict[str, bytes] = {}  # encoded once, sent many times
        self._getters: dict[str, list[_Waiter]] = {}
        self._collections: dict[str, Collection[_Waiter]] = {}
        self._aborted: dict[str, Cause] = {}
        self._watchers: dict[str, dict[int, tuple[str, int, str]]] = {}
        self._held: collections.Counter[int] = collections.Counter()  # by each client; see _MOST_HELD
        self._soonest = math.inf  # no deadline is earlier; may be stale, never late
        self.replies: list[tuple[int, tuple[bytes, ...]]] = []
        self._observers: list[tuple[str, Callable[[str, Any], None]]] = []

    def request(self, who: int, message: dict[str, Any]) -> None:
        """Apply one request of connection ``who``. Raises ``FrameError`` if it is not a request."""
        request_id = message.get("id")
        try:
            if type(request_id) is not int or not 0 <= request_id < 1 << 63:
                raise TypeError("no id")
            _OPERATIONS[message["op"]](self, who, request_id, message)
        except _Full as full:
            self._reply(who, {"id": request_id, "error": "full", "text": str(full)})
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise FrameError(f"a message is not a request of the store: {error!r}") from error

    def leave(self, who: int) -> None:
        """Connection ``who`` ended: its requests are forgotten, the scopes that it watched are aborted."""
        for waiter in [waiter for waiter in self._waiters() if waiter.who == who]:
            self._drop(waiter)
        watched = {scope: members.pop(who) for scope, members in self._watchers.items() if who in members}
        for scope, (identity, rank, host) in watched.items():
            if not self._watchers[scope]:
                del self._watchers[scope]
            text = f"{identity} went away while the ranks were connecting. Look at its own output first."
            cause = Cause(text, (rank,), rank=rank, host=host) if rank >= 0 else Cause(text)
            self._abort(scope, cause)
        del self._held[who]

    def fail(self, prefix: str, cause: Cause) -> None:
        """Abort every scope below ``prefix`` that anybody watches, and whatever comes there later."""
        for scope in [scope for scope in self._watchers if scope.startswith(prefix)]:
            self._abort(scope, cause)
        self._abort(prefix, cause)

    def put(self, key: str, value: Any) -> None:
        """Store a value without a client. Nobody observes it."""
        self._store(key, value)

    def forget(self, prefix: str) -> None:
        """Remove the keys below ``prefix``, and the memory that scopes there were aborted."""
        self._remove_below(prefix)
        for scope in [scope for scope in self._aborted if scope.startswith(prefix)]:
            del self._aborted[scope]

    def observe(self, prefix: str, heard: Callable[[str, Any], None]) -> None:
        """Call ``heard(rest of the key, value)`` for what clients set or add to below ``prefix``."""
        self._observers.append((prefix, heard))

    def waits(self, who: int) -> bool:
        """Return whether connection ``who`` waits for an answer that somebody else must bring about."""
        return any(waiter.who == who for waiter in self._waiters())

    def expire(self) -> float | None:
        """Answer what has waited long enough. Returns the seconds until the next deadline, None without
        one.
        """
        now = self._clock()
        if now >= self._soonest:
            late = [waiter for waiter in self._waiters() if waiter.deadline <= now]
            prefixes = {waiter.key for waiter in late if waiter.count}
            present = {prefix: SharedBody.of(_encoded(sorted(self._names(prefix)))) for prefix in prefixes}
            nobody = SharedBody.plain(b"[]")
            for waiter in late:
                self._drop(waiter)
                said = b',"waited_s":%b}' % _encoded(waiter.timeout_s)
                known = present[waiter.key] if waiter.count else nobody
                before = b'{"id":%d,"error":"timeout","present":' % waiter.request_id
                self._reply_shared(waiter.who, waiter.request_id, known, before, said)
            self._soonest = min((waiter.deadline for waiter in self._waiters()), default=math.inf)
        return None if self._soonest == math.inf else max(0.0, self._soonest - now)

    # -- operations, one per line of the module's table --

    def _set(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        key = _name(message["key"])
        if not self._refused(who, request_id, key):
            self._store(key, message["value"])
            self._ok(who, request_id, None)
            self._tell_observers(key, message["value"])

    def _get(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        key = _name(message["key"])
        if self._refused(who, request_id, key):
            return
        if key in self._values:
            self._ok_encoded(who, request_id, SharedBody.plain(self._values[key]))
        else:
            self._wait(who, request_id, key, 0, message)

    def _compare_and_set(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        key = _name(message["key"])
        if self._refused(who, request_id, key):
            return
        current = json.loads(self._values.get(key, b"null"))
        swapped = current == message["expected"]
        if swapped:
            self._store(key, message["value"])
        self._ok(who, request_id, [swapped, message["value"] if swapped else current])

    def _add(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        key = _name(message["key"])
        if not self._refused(who, request_id, key):
            total = int(json.loads(self._values.get(key, b"0"))) + int(message["amount"])
            self._store(key, total)
            self._ok(who, request_id, total)
            self._tell_observers(key, total)

    def _collect(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        prefix, count = _name(message["prefix"]), int(message["count"])
        if self._refused(who, request_id, prefix):
            return
        if prefix not in self._collections:
            self._forget_idle()
            self._collections[prefix] = Collection(prefix, self._names(prefix))
        collection, usual = self._collections[prefix], _usual(message)
        if usual not in collection.ways and len(collection.ways) >= _MOST_WAYS:
            raise _Full(f"{prefix!r} is collected in {_MOST_WAYS} ways already")
        collection.ways.add(usual)
        if len(collection.names) >= count:
            self._ok_encoded(who, request_id, self._book(collection, usual, for_many=False))
        else:
            self._wait(who, request_id, prefix, max(1, count), message, usual)

    def _remove(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        self._remove_below(_name(message["prefix"]))
        self._ok(who, request_id, None)

    def _watch(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        scope = _name(message["scope"])
        if self._refused(who, request_id, scope):
            return
        identity = _who(message["who"]), _rank(message["rank"]), _who(message["host"])
        members = self._watchers.get(scope, {})
        if who not in members:
            self._hold(who)
        members[who] = identity
        self._watchers[scope] = members
        for aborted, cause in self._aborted.items():
            if aborted.startswith(scope):
                self._reply(who, _event(aborted, cause))
        self._ok(who, request_id, None)

    def _unwatch(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        scope = _name(message["scope"])
        members = self._watchers.get(scope, {})
        if members.pop(who, None) is not None:
            self._held[who] -= 1
        if not members:
            self._watchers.pop(scope, None)
        self._ok(who, request_id, None)

    def _abort_scope(self, who: int, request_id: int, message: dict[str, Any]) -> None:
        scope = _name(message["scope"])
        cause = read_cause(message["cause"])
        if scope not in self._aborted:
            self._grow(_cost(scope) + cause.cost_bytes)
        self._abort(scope, cause)
        self._ok(who, request_id, None)

    # -- parts --

    def _tell_observers(self, key: str, value: Any) -> None:
        for prefix, heard in self._observers:
            if key.startswith(prefix):
                heard(key[len(prefix) :], value)

    def _store(self, key: str, value: Any) -> None:
        encoded = _encoded(value)
        old = self._values.get(key)
        grown = len(encoded) - len(old) if old is not None else len(encoded) + _cost(key)
        self._grow(grown)
        self._values[key] = encoded
        for waiter in self._getters.pop(key, []):
            self._held[waiter.who] -= 1
            self._ok_encoded(waiter.who, waiter.request_id, SharedBody.plain(encoded))
        for prefix, collection in self._collections.items():
            if not key.startswith(prefix):
                continue
            collection.names.add(key[len(prefix) :])
            collection.changed()
            ready = [waiter for waiter in collection.waiters if len(collection.names) >= waiter.count]
            if ready:
                collection.waiters = [w for w in collection.waiters if len(collection.names) < w.count]
                alike = collections.Counter(waiter.usual for waiter in ready)
                books = {way: self._book(collection, way, for_many=many > 1) for way, many in alike.items()}
                for waiter in ready:
                    self._held[waiter.who] -= 1
                    self._ok_encoded(waiter.who, waiter.request_id, books[waiter.usual])

    def _remove_below(self, prefix: str) -> None:
        for key in [key for key in self._values if key.startswith(prefix)]:
            self._bytes -= len(self._values.pop(key)) + _cost(key)
        for collected, collection in list(self._collections.items()):
            if collection.waiters:
                collection.names = self._names(collected)
                collection.changed()
            else:
                del self._collections[collected]

    def _forget_idle(self) -> None:
        """Replies are kept for others who ask the same; not for all that somebody ever asked."""
        idle = [prefix for prefix, collection in self._collections.items() if not collection.waiters]
        for prefix in idle[: max(0, len(idle) - _MOST_IDLE + 1)]:
            del self._collections[prefix]

    def _grow(self, count: int) -> None:
        if count > 0 and self._bytes + count > self._most_bytes:
            raise _Full(f"{self._bytes} of {self._most_bytes} bytes are taken")
        self._bytes += count

    def _names(self, prefix: str) -> set[str]:
        return {key[len(prefix) :] for key in self._values if key.startswith(prefix)}

    def _book(self, collection: Collection[_Waiter], usual: bytes | None, *, for_many: bool) -> SharedBody:
        book = collection.book(usual, self._values, for_many=for_many)
        forget_beyond(_MOST_KEPT_BYTES, self._collections.values())
        return book

    def _wait(
        self,
        who: int,
        request_id: int,
        key: str,
        count: int,
        message: dict[str, Any],
        usual: bytes | None = None,
    ) -> None:
        timeout_s = float(message["timeout_s"])
        if math.isnan(timeout_s):
            raise ValueError("a time-out is not a number")
        self._hold(who)
        deadline = self._clock() + min(timeout_s, _LONGEST_WAIT_S)
        waiter = _Waiter(who, request_id, key, count, deadline, timeout_s, usual)
        self._soonest = min(self._soonest, waiter.deadline)
        if count:
            self._collections[key].waiters.append(waiter)
        else:
            self._getters.setdefault(key, []).append(waiter)

    def _waiters(self) -> list[_Waiter]:
        found = [waiter for waiters in self._getters.values() for waiter in waiters]
        for collection in self._collections.values():
            found += collection.waiters
        return found

    def _hold(self, who: int) -> None:
        if self._held[who] >= _MOST_HELD:
            raise _Full(f"{_MOST_HELD} requests of this client are waiting already")
        self._held[who] += 1

    def _drop(self, waiter: _Waiter) -> None:
        self._held[waiter.who] -= 1
        if waiter.count:
            self._collections[waiter.key].waiters.remove(waiter)
            return
        self._getters[waiter.key].remove(waiter)
        if not self._getters[waiter.key]:
            del self._getters[waiter.key]

    def _abort(self, scope: str, cause: Cause) -> None:
        if scope in self._aborted:
            return
        self._aborted[scope] = cause
        answer = {"scope": scope, "cause": cause._asdict()}
        for waiter in [waiter for waiter in self._waiters() if waiter.key.startswith(scope)]:
            self._drop(waiter)
            self._say(waiter, error="aborted", **answer)
        event = (encode(_event(scope, cause)),)
        for watched, members in self._watchers.items():
            if scope.startswith(watched):
                self.replies += [(who, event) for who in members]

    def _refused(self, who: int, request_id: int, key: str) -> bool:
        for scope, cause in self._aborted.items():
            if key.startswith(scope):
                answer = {"id": request_id, "error": "aborted", "scope": scope, "cause": cause._asdict()}
                self._reply(who, answer)
                return True
        return False

    def _ok(self, who: int, request_id: int, value: Any) -> None:
        self._ok_encoded(who, request_id, SharedBody.plain(_encoded(value)))

    def _ok_encoded(self, who: int, request_id: int, value: SharedBody) -> None:
        self._reply_shared(who, request_id, value, b'{"id":%d,"ok":' % request_id, b"}")

    def _reply_shared(
        self, who: int, request_id: int, body: SharedBody, before: bytes, behind: bytes
    ) -> None:
        try:
            self.replies.append((who, body.frame(before, behind)))
        except FrameError as error:  # whoever asked cannot have it; who brought it about did nothing wrong
            self._reply(who, {"id": request_id, "error": "full", "text": str(error)})

    def _say(self, waiter: _Waiter, **answer: Any) -> None:
        self._reply(waiter.who, {"id": waiter.request_id, **answer})

    def _reply(self, who: int, answer: dict[str, Any]) -> None:
        self.replies.append((who, (encode(answer),)))


def _event(scope: str, cause: Cause) -> dict[str, Any]:
    return {"event": "aborted", "scope": scope, "cause": cause._asdict()}


def _usual(message: dict[str, Any]) -> bytes | None:
    """Return the value that is left out of a collection, as it is kept; None: nothing."""
    if "usual" not in message:
        return None
    encoded = _encoded(message["usual"])
    if len(encoded) > _MOST_USUAL_BYTES:
        raise ValueError(f"what is left out takes {len(encoded)} bytes")
    return encoded


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _cost(key: str) -> int:
    return _KEY_COST_BYTES + len(key)


class _Full(Exception):
    """A limit keeps the request from being served; the client hears which."""


_OPERATIONS: dict[str, Callable[[Table, int, int, dict[str, Any]], None]] = {
    "set": Table._set,
    "get": Table._get,
    "compare_and_set": Table._compare_and_set,
    "add": Table._add,
    "collect": Table._collect,
    "remove": Table._remove,
    "watch": Table._watch,
    "unwatch": Table._unwatch,
    "abort": Table._abort_scope,
}
