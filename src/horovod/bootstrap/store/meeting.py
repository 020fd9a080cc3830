"""Meeting point of the ranks of this job, and the key of the job: determined once per process.

``horovodrun`` says both. Under another launcher rank 0 serves the store. Its address follows from the
environment, or rank 0 tells the others through the launcher (``bootstrap/place/launcher_channels.py``).
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.bootstrap.network.routes import Route
from horovod.bootstrap.place import launcher_channels
from horovod.bootstrap.place.addresses import is_number, own_addresses
from horovod.bootstrap.place.descriptors import make_room
from horovod.bootstrap.place.topology import PORT_OF_KEY, RankPlace, no_store
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.serving import serve_store
from horovod.bootstrap.trust import unix
from horovod.bootstrap.trust.secret import (
    SECRET_VARIABLE,
    check_of,
    job_key,
    key_of_job,
    key_of_port,
    name_of,
    port_of,
)
from horovod.config import Config
from horovod.errors import ConfigError, RendezvousError

__all__ = ["Meeting", "key_of_store", "meet"]

_log = logging.getLogger("horovod.bootstrap")

_MOST_HOSTS = 8  # a card must fit into 1023 bytes
_PROBE_S = 1.0
_AGAIN_S = 0.2


@dataclass(frozen=True, eq=False)
class Meeting:
    """``place`` with everything that was found out; ``asked`` without. ``served``: by this process."""

    place: RankPlace
    key: bytes
    served: StoreServer | None
    asked: RankPlace
    channel: str = ""

    def end(self, environ: Mapping[str, str], drain_s: float = 0.0) -> None:
        """Stop serving the store."""
        if self.served is not None:
            launcher_channels.forget(self.channel, self.asked.job, environ)
            self.served.stop(drain_s)

    def narrow(self) -> None:
        """All ranks have met: close the sockets at which none of them came."""
        if self.served is not None:
            self.served.narrow()

    def abandon(self) -> None:
        """In a forked child: release what belongs to the parent."""
        if self.served is not None:
            self.served.abandon()


def meet(place: RankPlace, config: Config, environ: Mapping[str, str], earlier: Meeting | None) -> Meeting:
    """Find out where to meet, and serve the store if that is on this rank.

    Args:
        place: what the environment says.
        config: time limit, interfaces, name of the job.
        environ: of this process.
        earlier: of the world before, in this process: a store that is served stays.

    Raises:
        ConfigError: no key, no place to meet, or it cannot be served.
        RendezvousError: rank 0 did not tell in time.
    """
    if place.channels:
        if earlier is not None and earlier.asked == place:
            return earlier
        if earlier is not None:
            earlier.end(environ)
        return _tell(place, config, environ) if place.rank == 0 else _hear(place, config, environ)
    key = key_of_store(place.store, config.job_id or place.job, environ) if place.size > 1 else b""
    # One key in the environment may be that of many jobs.
    ours = key_of_job(key, place.job)
    place = replace(
        place, store=tuple(_found(each, ours) for each in place.store), job=config.job_id or place.job
    )
    if earlier is not None:
        if earlier.served is not None and _serves(earlier.served, place):
            return Meeting(place, key, earlier.served, place)
        earlier.end(environ)
    served = serve_store(place, key, config.network_interface) if place.serves else None
    return Meeting(place, key, served, place)


def key_of_store(store: Sequence[tuple[str, int]], job: str, environ: Mapping[str, str]) -> bytes:
    """The key of the job ``job`` (may be empty), whose ``store`` the environment says.

    Raises:
        ConfigError: see :func:`horovod.bootstrap.trust.secret.job_key`.
    """
    first, port = store[0]
    if not job and not unix.is_name(first):
        return key_of_port(environ, port)
    return job_key(environ, job)


def _found(address: tuple[str, int], key: bytes) -> tuple[str, int]:
    """With what follows from the key."""
    host, port = address
    if host == unix.NAME_OF_KEY:
        return name_of(key), unix.NO_PORT
    return host, port_of(key) if port == PORT_OF_KEY and not unix.is_name(host) else port


def _serves(store: StoreServer, place: RankPlace) -> bool:
    """Return whether ``store`` is the one that ``place`` needs."""
    if not place.store or store.job != place.job:
        return False
    first = place.store[0]
    return store.address == first if unix.is_name(first[0]) else store.address[1] == first[1]


def _tell(place: RankPlace, config: Config, environ: Mapping[str, str]) -> Meeting:
    """Rank 0: serve the store and tell the others where."""
    name = secrets.token_hex(16)
    job, key = _job(place, name, environ)
    make_room(place.size, f"{place.launcher}: the store of {place.size} ranks on rank {place.rank}")
    addresses = [] if place.one_host else own_addresses(config.network_interface)[:_MOST_HOSTS]
    served = StoreServer(key, [address.host for address in addresses] or unix.fresh_name(), job=job)
    served.start()
    card = _encode(
        {"at": served.addresses, "job": name, "check": check_of(key, _said(served.addresses, name))}
    )
    try:
        channel = _first(
            place, lambda each: launcher_channels.give(each, card, place.job, environ, config.init_timeout_s)
        )[0]
    except BaseException:
        served.stop()
        raise
    return Meeting(_complete(place, served.addresses, job), key, served, place, channel)


def _hear(place: RankPlace, config: Config, environ: Mapping[str, str]) -> Meeting:
    """Other ranks: take the card, and another one if the first is that of a program that has ended."""
    deadline = time.monotonic() + config.init_timeout_s
    while True:
        channel, text = _first(
            place,
            lambda each: launcher_channels.take(
                each, place.job, environ, max(0.1, deadline - time.monotonic())
            ),
        )
        card = _decode(text, channel)
        addresses = card["at"]
        if channel == "pmi" or not _gone(addresses) or time.monotonic() + _AGAIN_S > deadline:
            break
        time.sleep(_AGAIN_S)  # rank 0 of this program has not told yet
    job, key = _job(place, card["job"], environ)
    if not hmac.compare_digest(card["check"], check_of(key, _said(addresses, card["job"]))):
        raise _not_ours(place, channel)
    return Meeting(_complete(place, addresses, job), key, None, place, channel)


def _said(addresses: Sequence[tuple[str, int]], name: str) -> str:
    """Encode the content of a card, as it is signed."""
    return json.dumps([[list(address) for address in addresses], name])


def _not_ours(place: RankPlace, channel: str) -> ConfigError:
    return ConfigError(
        f"Rank {place.rank} on host {place.host} and rank 0 have different keys, or somebody has altered "
        f"what rank 0 told through {channel}. Without {SECRET_VARIABLE} the key is made from a file in the "
        "home directory (.config/farandole/key): do these hosts share it? Else give every rank the same "
        f"{SECRET_VARIABLE}: 64 random hexadecimal digits.",
        variable=SECRET_VARIABLE,
    )


def _first(place: RankPlace, attempt: Any) -> tuple[str, Any]:
    """The first channel that works, and what it gave."""
    reasons = []
    for channel in place.channels:
        try:
            return channel, attempt(channel)
        except launcher_channels.ChannelMissing as error:
            reasons.append(str(error))
            _log.info("Rank %d on host %s: %s", place.rank, place.host, error)
    raise ConfigError(f"{no_store(place)} (Tried: {'; '.join(reasons)}.)")


def _job(place: RankPlace, name: str, environ: Mapping[str, str]) -> tuple[str, bytes]:
    job = f"{place.launcher}/{name}"
    return job, job_key(environ, job)


def _complete(place: RankPlace, addresses: Any, job: str) -> RankPlace:
    return replace(place, store=tuple(addresses), job=job, channels=())


def _gone(addresses: list[tuple[str, int]]) -> bool:
    """Nobody listens there: a store listens before its card can be found."""
    for address in addresses:
        way = Route(*address)
        with socket.socket(way.family) as probe:
            probe.settimeout(_PROBE_S)
            try:
                probe.connect(way.address)
            except ConnectionRefusedError:
                continue
            except OSError:
                return False  # not reached: this says nothing
        return False
    return True


def _encode(card: dict[str, Any]) -> str:
    """Letters, digits, - and _ only: every channel takes them."""
    return base64.urlsafe_b64encode(json.dumps(card, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(text: str, channel: str) -> dict[str, Any]:
    """``at``: hosts (numbers) and ports, or the name of a socket; ``job``, ``check``: ASCII texts. Others may
    write to the channel.
    """
    try:
        card = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if not isinstance(card, dict) or not {"at", "job", "check"} <= card.keys():
            raise ValueError("not a card")
        addresses = [_address(*each) for each in card["at"]]
        words = [card[name] for name in ("job", "check")]
        if not addresses or not all(isinstance(word, str) and word.isascii() for word in words):
            raise ValueError("not a card")
    except (ValueError, TypeError, RecursionError) as error:
        raise RendezvousError(f"What rank 0 told through {channel} makes no sense: {error}.") from error
    return {"at": addresses, "job": words[0], "check": words[1]}


def _address(host: object, port: object) -> tuple[str, int]:
    if not isinstance(host, str) or not (is_number(host) or unix.is_name(host)):
        raise ValueError(f"{host!r} is not an address")
    if unix.is_name(host):
        return host, unix.NO_PORT
    if type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"{port!r} is not a port")
    return host, port
