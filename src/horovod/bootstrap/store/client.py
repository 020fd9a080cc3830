"""The side of the store that asks: a connection of a rank, or of the launcher."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, cast

from horovod.bootstrap.store.connection import RECEIVE_BYTES
from horovod.bootstrap.store.messages import ALTERED, AlteredError, FrameReader, encode
from horovod.bootstrap.store.table import Cause, read_cause
from horovod.errors import AuthenticationError, HorovodInternalError, RendezvousError, StoreTimeout

__all__ = ["StoreClient"]

_NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of a search for the parts of a message in one of another shape."""

_ANSWER_GRACE_S = 5.0  # the server answers time-outs itself; this is for a server that answers nothing at all


class StoreClient:
    """One connection to the store, used by one thread; a context manager.

    Args:
        address: host and port of the server, or several: those that work are found by trying. Or the name of
            its Unix socket, at which nobody but this user is believed.
        key: the job's key.
        timeout_s: for connecting and the handshake; a server that is not there yet is tried again until then.
        identity: who this is, for messages: ``rank 3 on host b``.
        job: the name of the job, as the server has it.

    Raises:
        AuthenticationError: the two sides do not have the same key, job and user.
        RendezvousError: nobody answers at ``address``.
    """

    def __init__(
        self,
        address: tuple[str, int] | Sequence[tuple[str, int]],
        key: bytes,
        timeout_s: float,
        identity: str,
        *,
        job: str = "",
    ) -> None:
        from horovod.bootstrap.network.reaching import (
            reach_store,  # a launcher alone on its machine reaches nothing
        )

        self.identity = identity
        self.aborted: dict[str, Cause] = {}
        self._next_id = 0
        self._silent = False
        self._arrived: list[dict[str, Any]] = []
        places = [cast("tuple[str, int]", address)] if isinstance(address[0], str) else address
        self._socket, route, session = reach_store(
            cast("Sequence[tuple[str, int]]", places), key, timeout_s, identity, job
        )
        self._reader = FrameReader(checker=session.checker(), inflates=True)
        self._signer = session.signer()
        self._where = str(route)

    def local_host(self) -> str:
        """The address of this machine on the interface that reaches the store; "" for a Unix socket."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """The descriptor to wait on for events; see ``pump``."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection. Scopes that are still watched are aborted by this. Idempotent."""
        self._socket.close()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, key: str, value: Any) -> None:
        """Store ``value`` (anything that JSON can say) under ``key``."""
        self._call("set", key=key, value=value)

    def get(self, key: str, timeout_s: float) -> Any:
        """The value under ``key``, waiting for it. Raises ``StoreTimeout`` that names the key."""
        return self._call("get", wait_s=timeout_s, key=key, timeout_s=timeout_s)

    def compare_and_set(self, key: str, expected: Any, value: Any) -> tuple[bool, Any]:
        """Store ``value`` if the key holds ``expected`` (None = does not exist). Returns (stored?, value
        now).
        """
        swapped, current = self._call("compare_and_set", key=key, expected=expected, value=value)
        return bool(swapped), current

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter that begins at 0. Returns the new number."""
        return int(self._call("add", key=key, amount=amount))

    def collect(self, prefix: str, count: int, timeout_s: float, usual: Any = None) -> dict[str, Any]:
        """Everything below ``prefix`` in one reply, as soon as ``count`` keys are there.

        Args:
            usual: what most are expected to be, if there is such a value: those are left out of the reply.

        Returns:
            The values by the rest of their keys, in no order.

        Raises:
            StoreTimeout: fewer came in time. ``keys`` names the missing ones if they are numbered from 0.
        """
        usually = {} if usual is None else {"usual": usual}
        answer: dict[str, Any] = self._call(
            "collect", wait_s=timeout_s, prefix=prefix, count=count, timeout_s=timeout_s, **usually
        )
        return answer

    def remove(self, prefix: str) -> None:
        """Forget every key that begins with ``prefix``."""
        self._call("remove", prefix=prefix)

    def watch(self, scope: str, rank: int = -1, host: str = "") -> None:
        """Hear of aborts below ``scope`` (they appear in ``aborted``), and abort it if this connection is
        lost: that of ``rank`` on ``host``, or -1: of no rank.
        """
        self._call("watch", scope=scope, who=self.identity, rank=rank, host=host)

    def unwatch(self, scope: str) -> None:
        """Undo ``watch``: what this process does no longer concerns the scope."""
        self._call("unwatch", scope=scope)

    def abort(self, scope: str, cause: Cause) -> None:
        """Make everybody fail who waits for a key below ``scope``, now or later. The first cause stays."""
        self._call("abort", scope=scope, cause=cause._asdict())

    def pump(self) -> None:
        """Take in events that have arrived, without waiting. Raises ``RendezvousError`` if the store is
        gone.
        """
        self._socket.setblocking(False)
        try:
            self._take(self._socket.recv(RECEIVE_BYTES))
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(error) from error

    def _call(self, op: str, *, wait_s: float = 0.0, **operands: Any) -> Any:
        if self._silent:
            raise self._no_answer()
        self._next_id += 1
        request_id = self._next_id
        deadline = time.monotonic() + wait_s + _ANSWER_GRACE_S
        try:
            self._socket.settimeout(_ANSWER_GRACE_S)
            self._socket.sendall(self._signer.signed(encode({"id": request_id, "op": op, **operands})))
            while True:
                for message in self._arrived:
                    if message.get("id") == request_id:
                        self._arrived.clear()
                        return self._understood(op, message, operands)
                self._arrived.clear()
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                self._take(self._socket.recv(RECEIVE_BYTES))
        except TimeoutError as error:
            self._silent = True  # whoever tries again need not wait again
            raise self._no_answer() from error
        except OSError as error:
            raise self._lost(error) from error

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("it closed the connection")
        try:
            for message in self._reader.feed(data):
                if message.get("event") == "aborted":
                    self.aborted.setdefault(message["scope"], read_cause(message["cause"]))
                else:
                    self._arrived.append(message)
        except AlteredError as error:
            raise AuthenticationError(
                f"{self.identity} has lost the store at {self._where}: {ALTERED}"
            ) from error
        except _NONSENSE as error:
            raise self._protocol_error(error) from error

    def _understood(self, op: str, message: dict[str, Any], operands: dict[str, Any]) -> Any:
        """Return the result in the answer, checked to be of the kind that ``op`` has."""
        try:
            result = self._result(message, operands)
            if op == "compare_and_set" and not (isinstance(result, list) and len(result) == 2):
                raise TypeError("not a pair")
            if op == "collect" and not isinstance(result, dict):
                raise TypeError("not a collection")
            if op == "add" and type(result) is not int:
                raise TypeError("not a number")
        except _NONSENSE as error:
            raise self._protocol_error(error) from error
        return result

    def _protocol_error(self, error: Exception) -> HorovodInternalError:
        return HorovodInternalError(f"The store at {self._where} sent nonsense: {error!r}")

    def _result(self, message: dict[str, Any], operands: dict[str, Any]) -> Any:
        error = message.get("error")
        if error is None:
            return message["ok"]
        if error == "aborted":
            cause = self.aborted.setdefault(message["scope"], read_cause(message["cause"]))
            raise cause.error()
        if error == "full":
            raise RendezvousError(f"The store at {self._where} has no room: {message['text']}.")
        if "key" in operands:
            keys, what = [operands["key"]], repr(operands["key"])
        else:
            keys = _missing_keys(operands["prefix"], operands["count"], message["present"])
            present = len(message["present"])
            what = f"{operands['count'] - present} of {operands['count']} keys below {operands['prefix']!r}"
            what += f" ({', '.join(keys)})" if keys else ""
        raise StoreTimeout(
            f"The store at {self._where} did not get {what} within {message['waited_s']:g} s.",
            keys=keys,
            waited_s=message["waited_s"],
        )

    def _no_answer(self) -> RendezvousError:
        return RendezvousError(
            f"The store at {self._where} does not answer {self.identity}: the process that serves it is "
            "stopped, or one of the two hosts is cut off from the network."
        )

    def _lost(self, error: OSError) -> RendezvousError:
        return RendezvousError(
            f"{self.identity} lost the store at {self._where} ({error}): its server has ended, or closed the "
            "connection because the keys differ (HOROVOD_SECRET_KEY), or because what this process said was "
            "altered on the way. The output of the process that serves it says which."
        )


def _missing_keys(prefix: str, count: int, present: Sequence[str]) -> list[str]:
    """The keys that are not there, if the keys are numbered from 0; else nobody can know their names."""
    if not all(name.isdecimal() for name in present):
        return []
    known = set(present)
    return [f"{prefix}{number}" for number in range(count) if str(number) not in known]
