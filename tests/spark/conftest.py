"""A Spark of this machine for all tests of a session: two executors with a core each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MASTER = "local-cluster[2,1,1024]"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Java, PySpark and Py4J leave sockets to the collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"))


@pytest.fixture(scope="session")
def context() -> Iterator[Any]:
    """Its SparkContext."""
    pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed (make system)")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = pyspark.SparkConf().setAll(settings(MASTER).items())
    made = pyspark.SparkContext(conf=conf)
    made.setLogLevel("ERROR")
    yield made
    made.stop()


def settings(master: str) -> dict[str, str]:
    """Of a Spark that listens on the loopback interface only."""
    return {
        "spark.master": master,
        "spark.app.name": "rueda-tests",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "4",
        "spark.executor.memory": "512m",
    }
