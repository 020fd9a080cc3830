"""A Ray cluster for all tests of a session, in a network and a process space of its own.

Outside of such a space Ray takes the outer address of the machine, and its processes may outlive the tests.
Tests are functions of their modules, as everywhere; `in_ray` lets them run in the process that has started
the cluster. That process is this file: it reads names of tests, and answers how they went.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

WHOLE = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"
ROOT = Path(__file__).resolve().parents[2]
HEAD_CPUS, OTHER_CPUS, GPUS = 4, 2, 4
_INSIDE = "FARANDOLE_TESTS_IN_RAY"
_SPACE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


class Session:
    """The process of the cluster, as tests outside see it."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="r")  # short: sockets lie below it
        answers, theirs = os.pipe()
        self._answers = os.fdopen(answers)
        self._process = subprocess.Popen(
            [
                *_SPACE,
                "sh",
                "-c",
                'ip link set lo up; exec "$@"',
                "sh",
                sys.executable,
                "-m",
                "tests.ray.session",
                str(theirs),
            ],
            cwd=ROOT,
            env={**os.environ, **_variables(self._folder)},
            pass_fds=[theirs],
            stdin=subprocess.PIPE,
            text=True,
        )
        os.close(theirs)

    def call(self, module: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Run a test there; fails as it does."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([module, name, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        assert line, f"the process of the cluster has ended: {self._process.wait()}"
        said = json.loads(line)
        if "skip" in said:
            pytest.skip(said["skip"])
        assert "failure" not in said, said["failure"]

    def close(self) -> None:
        """With it ends all that runs in its space."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._answers.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def _variables(folder: str) -> dict[str, str]:
    return {
        _INSIDE: "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "TMPDIR": folder,
        "RAY_TMPDIR": folder,
        "HOME": folder,  # Ray and we leave files there
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: beside other tests, actors would take minutes to start
        "OMP_NUM_THREADS": "1",
    }


def why_not() -> str:
    """Why there can be no such space; empty: there can."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "Ray is tested in a network of its own: unshare and ip are needed (make system)"
    tried = subprocess.run([*_SPACE, "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"a network of its own cannot be made: {tried.stderr.strip()}"


def in_ray(test: Callable[..., Any]) -> Callable[..., Any]:
    """Let a test run in the process of the cluster. Its arguments are those that it is parametrized with."""
    if os.environ.get(_INSIDE):
        return test

    @functools.wraps(test)
    def outside(ray_session: Session, **arguments: Any) -> None:
        ray_session.call(test.__module__, test.__name__, arguments)

    names = ["ray_session", *inspect.signature(test).parameters]
    outside.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return outside


def _serve(answers: int) -> None:
    """Start the cluster: a head, and another node. Then run tests until nobody asks for more."""
    import ray
    from ray.cluster_utils import Cluster

    resources = {"num_cpus": HEAD_CPUS, "num_gpus": GPUS, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**resources, "object_store_memory": 100 << 20})
    cluster.add_node(num_cpus=OTHER_CPUS, num_gpus=0, object_store_memory=100 << 20, resources={"other": 1})
    os.environ["RAY_ADDRESS"] = cluster.address
    ray.init(cluster.address, log_to_driver=False)
    with os.fdopen(answers, "w", buffering=1) as written:
        for line in sys.stdin:
            module, name, arguments = json.loads(line)
            said: dict[str, str] = {}
            try:
                getattr(importlib.import_module(module), name)(**arguments)
            except pytest.skip.Exception as skipped:
                said["skip"] = str(skipped)
            except BaseException:
                said["failure"] = traceback.format_exc()
            written.write(json.dumps(said) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    from tests.ray import session  # tests and this file are to mean the same module

    session._serve(int(sys.argv[1]))
