"""Somebody stands between two ranks and passes on what they say, changed: no wrong sum, no code of his."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from horovod.bootstrap.store.server import StoreServer

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
ALTERED = "its data was altered on the way"


def attacked(what: str, protection: str, folder: Path) -> list[dict[str, Any]]:
    """How it went for each rank."""
    key, job = secrets.token_bytes(32), secrets.token_hex(8)
    with StoreServer(key, job=job) as store:
        ranks = []
        for rank in range(2):
            slot = {
                "RANK": rank,
                "SIZE": 2,
                "LOCAL_RANK": 0,
                "LOCAL_SIZE": 1,
                "CROSS_RANK": rank,
                "CROSS_SIZE": 2,
            }
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.contract.middled_rank", what],
                    cwd=ROOT,
                    env=os.environ
                    | {f"HOROVOD_{name}": str(value) for name, value in slot.items()}
                    | {
                        "HOROVOD_HOSTNAME": f"host{rank}",
                        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store.address[0],
                        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.address[1]),
                        "HOROVOD_SECRET_KEY": key.hex(),
                        "HOROVOD_JOB_ID": job,
                        "HOROVOD_TRANSPORT_GROUPS": "single",
                        "HOROVOD_NETWORK_PROTECTION": protection,
                        "HOROVOD_GLOO_TIMEOUT_SECONDS": "4",
                        "HOROVOD_START_TIMEOUT": "60",
                        "OMP_NUM_THREADS": "1",
                        "CANARY": str(folder / "canary"),
                    },
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        try:
            reports = []
            for process in ranks:
                assert process.stdout is not None
                ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
                assert ready, "a rank says nothing"
                reports.append(json.loads(process.stdout.readline()))
            return reports
        finally:
            for process in ranks:
                process.kill()
                process.wait(LIMIT_S)
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()


@pytest.mark.parametrize(
    ("what", "protection"),
    [
        ("change", "integrity"),
        ("change", "full"),
        ("bomb", "integrity"),
        ("repeat", "integrity"),
        ("drop", "full"),
    ],
)
def test_what_is_altered_between_ranks_is_an_error_on_both(
    what: str, protection: str, tmp_path: Path
) -> None:
    reports = attacked(what, protection, tmp_path)
    said_by = 1 if what in ("repeat", "drop") else 0
    for report in reports:
        assert ALTERED in report["text"], reports
        assert "at 127.0.0.1" in report["text"], reports
        assert (report["rank"], report["host"]) == (said_by, f"host{said_by}"), reports
        assert report.get("sum", [3.0]) == [3.0]
    assert not (tmp_path / "canary").exists()


def test_a_record_that_claims_to_be_longer_than_what_follows_ends_with_the_time_limit(tmp_path: Path) -> None:
    """It is waited for, like one that is held back."""
    for protection in ("integrity", "full"):
        begin = time.monotonic()
        reports = attacked("longer", protection, tmp_path)
        assert time.monotonic() - begin < 20.0
        for report in reports:
            assert report.get("sum", [3.0]) == [3.0]
            assert report["type"] == "CollectiveTimeout"
            assert (report["rank"], report["host"]) == (0, "host0")
            assert "'allreduce.after' was started by all ranks but has made no progress" in report["text"]


def test_without_protection_numbers_can_be_changed_but_no_code_runs(tmp_path: Path) -> None:
    """What ``off`` means; and that the attack is one."""
    reports = attacked("change", "off", tmp_path)
    assert any(report.get("sum", [3.0]) != [3.0] for report in reports), reports
    (root, other) = attacked("bomb", "off", tmp_path)
    assert root["object"] is True
    assert other["type"] == "AuthenticationError"
    assert "number 1 of that name, got is not what rank 0 on host host0 sent" in other["text"]
    assert not (tmp_path / "canary").exists()
