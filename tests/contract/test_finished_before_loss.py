"""A rank brings all that an operation needs of it, and dies: the others finish that operation."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horovod.bootstrap.store.server import StoreServer

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0


class Rank:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def does(self, word: str) -> None:
        self.tell(word)
        assert self.says() == word

    def stop(self) -> None:
        """Once it has done what it can do alone: all its threads sleep, again and again."""
        deadline = time.monotonic() + LIMIT_S
        asleep = 0
        while asleep < 5:
            assert time.monotonic() < deadline
            time.sleep(0.04)
            asleep = asleep + 1 if self.state() == {"S"} else 0
        self.process.send_signal(signal.SIGSTOP)
        while self.state() != {"T"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def state(self) -> set[str]:
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return {(each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads}


@contextmanager
def two_ranks(groups: str, count: int, backend: str = "") -> Iterator[tuple[Rank, Rank]]:
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    ranks: list[Rank] = []
    with StoreServer(key, job=job) as server:
        for number in range(2):
            slot = {"RANK": number, "SIZE": 2, "LOCAL_RANK": number, "LOCAL_SIZE": 2, "CROSS_RANK": 0}
            settings = {
                **slot,
                "CROSS_SIZE": 1,
                "HOSTNAME": "localhost",
                "GLOO_RENDEZVOUS_ADDR": server.address[0],
                "GLOO_RENDEZVOUS_PORT": server.address[1],
                "SECRET_KEY": key.hex(),
                "JOB_ID": job,
                "TRANSPORT_GROUPS": groups,
                "CPU_OPERATIONS": backend,
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.leaver", str(count)],
                cwd=ROOT,
                env=os.environ | {f"HOROVOD_{name}": str(value) for name, value in settings.items()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ranks.append(Rank(process))
        try:
            for rank in ranks:
                rank.tell("twice")
            for rank in ranks:
                assert rank.says() == "twice"
            yield ranks[0], ranks[1]
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait(LIMIT_S)
                for end in (rank.process.stdin, rank.process.stdout):
                    assert end is not None
                    end.close()


@pytest.mark.parametrize("count", [3, 5000])
@pytest.mark.parametrize("groups", ["", "single"], ids=["shm", "tcp"])
def test_operation_that_the_coordinator_has_started(groups: str, count: int) -> None:
    with two_ranks(groups, count) as (survivor, leaver):
        leaver.does("begin")
        leaver.stop()
        survivor.does("begin")
        survivor.tell("end")
        survivor.stop()  # it has brought its part
        leaver.go_on()
        leaver.tell("end")
        assert leaver.says() == "got 3.0 3.0"
        leaver.tell("die")
        leaver.process.wait(LIMIT_S)
        survivor.go_on()
        assert survivor.says() == "got 3.0 3.0"
        survivor.tell("all")
        assert survivor.says().startswith("PeerLostError: rank 1 on host localhost is gone")


def test_operation_that_the_coordinator_has_decided() -> None:
    """That, and what it has brought, counts also if it is read when its connections have ended."""
    with two_ranks("single", 3) as (leaver, survivor):
        survivor.does("give")
        survivor.stop()
        leaver.does("give")
        leaver.tell("end")
        assert leaver.says() == "got 1.0 1.0"
        leaver.tell("die")
        leaver.process.wait(LIMIT_S)
        survivor.go_on()
        survivor.tell("end")
        assert survivor.says() == "got 1.0 1.0"
        survivor.tell("all")
        assert survivor.says().startswith("PeerLostError: rank 0 on host localhost is gone")


def test_nothing_is_begun_in_a_backend_that_the_lost_rank_would_have_to_serve() -> None:
    with two_ranks("single", 3, "tests.contract.telling_backend:Telling") as (leaver, survivor):
        survivor.does("give")
        survivor.stop()
        leaver.does("give")
        leaver.tell("end")
        assert leaver.says().startswith("got ")
        leaver.tell("die")
        leaver.process.wait(LIMIT_S)
        survivor.go_on()
        survivor.tell("end")
        assert survivor.says().startswith("PeerLostError: rank 0 on host localhost is gone")


@pytest.mark.parametrize("groups", ["", "single"], ids=["shm", "tcp"])
def test_world_that_has_ended_before_the_process_of_a_rank(groups: str) -> None:
    with two_ranks(groups, 3) as (leaver, survivor):
        survivor.stop()
        leaver.tell("leave")
        leaver.process.wait(LIMIT_S)
        survivor.go_on()
        survivor.tell("all")
        assert "has been shut down" in survivor.says()
