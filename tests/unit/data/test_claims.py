"""Drivers that have one store: each gets a place of its own, and what is left behind is free after a time."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from horovod.errors import DataStoreError
from horovod.spark.common import dataset as claims
from horovod.spark.common.dataset import Claim
from horovod.spark.common.store import FilesystemStore


@pytest.fixture
def place(tmp_path: Path) -> tuple[FilesystemStore, str]:
    store = FilesystemStore(str(tmp_path))
    return store, store.get_train_data_path(0)


def test_a_place_has_one_driver_until_it_is_released(place: tuple[FilesystemStore, str]) -> None:
    mine, other = Claim(*place, driver="mine"), Claim(*place, driver="other")
    assert mine.take() is None
    assert "process" in (other.take() or "")
    assert mine.is_last()
    mine.release()
    assert mine.is_last(), "nobody else has written there yet"
    assert other.take() is None
    assert not mine.is_last()
    mine.release()
    assert "process" in (mine.take() or ""), "it releases nothing of others"
    other.release()
    assert {each.name for each in threading.enumerate()}.isdisjoint({"store-claim"})


def test_of_drivers_that_come_at_the_same_moment_one_has_it(place: tuple[FilesystemStore, str]) -> None:
    drivers = [Claim(*place, driver=str(number)) for number in range(4)]
    ready, found = threading.Barrier(4), []

    def take(claim: Claim) -> None:
        ready.wait(20)
        found.append(claim.take())

    threads = [threading.Thread(target=take, args=(each,)) for each in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 1
    for each in drivers:
        each.release()


def test_what_a_driver_that_is_killed_leaves_is_free_after_a_time(
    place: tuple[FilesystemStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_RENEWAL_S", 600.0)  # as if it was killed
    killed, other = Claim(*place, driver="killed"), Claim(*place, driver="other")
    assert killed.take() is None
    assert other.take()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + claims._LEASE_S)
    assert other.take() is None
    for each in (killed, other):
        each.release()


def test_a_claim_is_renewed_while_it_is_held(
    place: tuple[FilesystemStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = place
    monkeypatch.setattr(claims, "_RENEWAL_S", 0.01)
    written = threading.Semaphore(0)
    write_text = store.write_text

    def noted(path: str, text: str) -> None:
        write_text(path, text)
        written.release()

    monkeypatch.setattr(store, "write_text", noted)
    claim = Claim(store, path)
    assert claim.take() is None
    until = json.loads(store.read(f"{path}.claim"))["until"]
    for _ in range(3):
        assert written.acquire(timeout=20)
    claim.release()
    assert json.loads(store.read(f"{path}.claim"))["until"] == 0 < until


def test_a_claim_that_is_none_is_named(place: tuple[FilesystemStore, str]) -> None:
    store, path = place
    store.write_text(f"{path}.claim", "{")
    with pytest.raises(DataStoreError, match=r"intermediate_train_data\.0\.claim should say which driver"):
        Claim(store, path).take()
