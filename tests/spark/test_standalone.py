"""A standalone cluster on two hosts, each with a worker of two cores."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.simulated import SimulatedHosts, why_not
from tests.spark.conftest import WHOLE

pytest.importorskip("pyspark", reason="PySpark is not installed")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("standalone_driver.py")
PORT = 17077
LIMIT_S = 60.0

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not WHOLE, reason="Java starts six times: the full matrix tries it"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is not installed"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedHosts]:
    """The hosts; the master is on the first."""
    if reason := why_not():
        pytest.skip(reason)
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    folder = tmp_path_factory.mktemp("standalone")
    daemons: list[subprocess.Popen[bytes]] = []
    with SimulatedHosts(2) as hosts:
        log = open(folder / "log", "w")  # noqa: SIM115

        def daemon(host: int, kind: str, *words: str) -> None:
            daemons.append(
                hosts.popen(
                    host,
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    "--host",
                    hosts.names[host],
                    *words,
                    extra={
                        "SPARK_HOME": str(home),
                        "SPARK_LOCAL_IP": hosts.names[host],
                        "SPARK_DAEMON_MEMORY": "256m",
                        "PYSPARK_PYTHON": sys.executable,
                        "PYTHONPATH": str(ROOT / "src"),
                    },
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                )
            )

        try:
            daemon(0, "master.Master", "--port", str(PORT), "--webui-port", "18080")
            for host in range(2):
                options = ["--cores", "2", "--memory", "1g", "--work-dir", str(folder / f"work{host}")]
                daemon(host, "worker.Worker", *options, f"spark://{hosts.names[0]}:{PORT}")
            until = time.monotonic() + LIMIT_S
            while (folder / "log").read_text().count("Registering worker") < 2:
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.1)  # a log tells of nothing by itself
            yield hosts
        finally:
            for each in daemons:
                each.kill()
                each.wait()
            log.close()


def drive(hosts: SimulatedHosts, what: str) -> list[list[object]]:
    """What the script says on the first host."""
    done = subprocess.run(
        hosts.command(
            0, [sys.executable, str(SCRIPT), f"spark://{hosts.names[0]}:{PORT}", hosts.names[0], what]
        ),
        env={
            **os.environ,
            **hosts.environment,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": hosts.names[0],
            "PYTHONPATH": str(ROOT / "src"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ranks_of_a_host_follow_each_other(cluster: SimulatedHosts) -> None:
    hosts = cluster
    found = drive(hosts, "world")
    first = found[0][0]
    other = hosts.names[1] if first == hosts.names[0] else hosts.names[0]
    assert first in hosts.names, found
    assert found == [
        [first, 0, 4, 0, 2, 0, 6.0],
        [first, 1, 4, 1, 2, 0, 6.0],
        [other, 2, 4, 0, 2, 1, 6.0],
        [other, 3, 4, 1, 2, 1, 6.0],
    ]


def test_a_host_that_dies_is_an_error_that_names_it(cluster: SimulatedHosts) -> None:
    hosts = cluster
    kind, message = drive(hosts, "die")[0]
    assert kind == "WorkerFailed"
    assert hosts.names[1] in str(message), message
    assert "Spark task" in str(message), message
