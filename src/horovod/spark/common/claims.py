"""Claims of drivers to places in a store, so that no two drivers write to the same one."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from typing import Any, Final

from horovod.errors import DataStoreError
from horovod.spark.common.store.base import Store, user_name

__all__ = ["Claim"]

_LEASE_S: Final = 120.0
"""Time after which the place of a killed driver is free. Clocks of drivers must agree that well."""

_RENEWAL_S: Final = 20.0

_LOOK_AGAIN_S: Final = 0.2
"""Stores have no lock: of two drivers that write at the same moment the last one has the claim. The other one
sees that when it looks again, if whoever found the place free has written by then."""

_DRIVER: Final = uuid.uuid4().hex


class Claim:
    """A file beside the data that says who uses them.

    It stays when the driver is done: while its name is in there nobody else has written to the place.

    Args:
        place: path of the data.
    """

    def __init__(self, store: Store, place: str, driver: str = _DRIVER) -> None:
        self._store = store
        self._path = f"{place}.claim"
        self._driver = driver
        self._done = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> str | None:
        """Claim the place until :meth:`release`; returns who has it, if somebody else does.

        Raises:
            DataStoreError: the store cannot be written.
        """
        found = self._read()
        if found.get("driver") != self._driver and found.get("until", 0) > time.time():
            return _name(found)
        self._write(time.time() + _LEASE_S)
        time.sleep(_LOOK_AGAIN_S)
        found = self._read()
        if found.get("driver") != self._driver:
            return _name(found)
        self._done.clear()
        self._renewing = threading.Thread(target=self._renew, name="store-claim", daemon=True)
        self._renewing.start()
        return None

    def is_last(self) -> bool:
        """True while nobody else has claimed the place."""
        return bool(self._read().get("driver") == self._driver)

    def release(self) -> None:
        """Let others have the place. A store that fails keeps them away until the lease ends."""
        self._done.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        self._extend(0)

    def _renew(self) -> None:
        while not self._done.wait(_RENEWAL_S):
            self._extend(time.time() + _LEASE_S)

    def _extend(self, until: float) -> None:
        try:
            if self.is_last():
                self._write(until)
        except OSError:
            pass  # the next time it may go, and nobody waits for it

    def _write(self, until: float) -> None:
        who = {
            "driver": self._driver,
            "user": user_name(),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        self._store.write_text(self._path, json.dumps({**who, "until": until}))

    def _read(self) -> dict[str, Any]:
        if not self._store.exists(self._path):
            return {}
        try:
            found = json.loads(self._store.read(self._path))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise DataStoreError(
                f"{self._path} should say which driver uses the data beside it, and has something else. "
                "Remove it, or give the store another path.",
                path=self._path,
            ) from None
        return found if isinstance(found, dict) else {}


def _name(found: dict[str, Any]) -> str:
    return f"{found.get('user')} on {found.get('host')} (process {found.get('process')})"
