"""What is taken for one machine when a world is formed of a communicator. Real ones are in tests/contract."""

from __future__ import annotations

import pytest

from horovod.backends import communicators
from horovod.backends.communicators import _Machine, _one_network, _places
from horovod.bootstrap.network.listening import namespace
from horovod.bootstrap.place.addresses import own_addresses
from horovod.bootstrap.trust import unix

HERE = _Machine(namespace(), [address.host for address in own_addresses()] or ["192.0.2.1"])
BESIDE = _Machine((namespace()[0], -1), ["127.0.0.1"])
ELSEWHERE = _Machine(("another kernel", namespace()[1]), ["192.0.2.7"])


def test_processes_of_one_network_namespace_meet_at_a_socket() -> None:
    assert _one_network([HERE, HERE, HERE])
    (place,) = _places([HERE, HERE], {})
    assert unix.is_name(place)


@pytest.mark.parametrize("other", [BESIDE, ELSEWHERE], ids=["container", "host"])
def test_containers_and_hosts_do_not_whatever_their_names_are(
    other: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no key goes through MPI between them."""
    monkeypatch.setattr(communicators, "_own_hosts", lambda _: ["192.0.2.1", "192.0.2.2"])
    assert not _one_network([HERE, other])
    places = _places([HERE, HERE, other], {})
    assert places
    assert not any(unix.is_name(place) for place in places)
    chosen = _places([HERE, other], {"HOROVOD_GLOO_IFACE": "eth9"})
    assert chosen == ["192.0.2.1", "192.0.2.2"], "what is chosen counts as it is"
