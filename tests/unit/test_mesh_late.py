"""What ``connect`` leaves out of a large world, and what makes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.unit.test_mesh import (
    KEY,
    SEGMENT_BYTES,
    FakeEngine,
    assert_connected,
    close,
    failures,
    form,
    place,
    settings,
)

from horovod.bootstrap.mesh.connecting import connect
from horovod.bootstrap.mesh.connections import Mesh
from horovod.bootstrap.place.topology import Topology
from horovod.bootstrap.store.server import StoreServer
from horovod.errors import BackendError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(KEY, job="job") as running:
        yield running


def test_a_large_world_leaves_connections_for_later(server: StoreServer) -> None:
    """Six groups: those that are three apart meet when an operation needs it, and so do ranks of other
    indices.
    """
    config = replace(settings("single"), network_connect_all=5, network_streams=2)
    meshes = form(server, [config] * 6)
    for rank, (_, mine) in enumerate(meshes):
        opposite = (rank + 3) % 6
        assert {peer.rank: len(peer.data) for peer in mine.network_peers} == {
            other: 0 if other == opposite else 2
            for other in range(6)
            if other != rank and (other != opposite or 0 in (rank, other))
        }  # an edge of the control tree has no data of its own
        assert mine.late is not None
        engine = FakeEngine()
        mine.hand_over(engine)
        assert engine.absent == {opposite: 2}
        for descriptor in engine.taken:
            os.close(descriptor)
        mine.late.close()


def test_up_to_the_limit_all_connections_are_there_at_once(server: StoreServer) -> None:
    meshes = form(server, [replace(settings("single"), network_connect_all=6)] * 6)
    assert_connected(meshes)
    assert all(mine.late is None for _, mine in meshes)
    close(meshes)


def test_a_world_that_is_not_formed_leaves_nothing_for_later(server: StoreServer) -> None:
    config = replace(settings("single", timeout_s=20.0), network_connect_all=1)

    def refuse(topology: Topology, mesh: Mesh) -> None:
        assert mesh.late is not None
        if topology.rank == 4:
            raise BackendError("no memory")

    with ThreadPoolExecutor(6) as pool:
        futures = [
            pool.submit(
                connect, place(server, rank, 6), config, KEY, lambda _: SEGMENT_BYTES, (), None, "", refuse
            )
            for rank in range(6)
        ]
        for error in failures(futures):
            assert "no memory" in str(error)
