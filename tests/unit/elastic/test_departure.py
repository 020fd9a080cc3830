"""Notices that a process or its host will be taken away."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.elastic import departure
from horovod.elastic.departure import Watch, noticed

pytestmark = pytest.mark.timeout(60)


class _Cloud(http.server.BaseHTTPRequestHandler):
    """Answers as ``status`` and ``text`` of its server say; with ``token``, only to who has it."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        status, text = server.status, server.text
        if server.token and self.headers.get("X-aws-ec2-metadata-token") != server.token:
            status, text = 401, ""
        if server.demands and self.headers.get(server.demands[0]) != server.demands[1]:
            status, text = 403, ""
        self._answer(status, text)

    def do_PUT(self) -> None:
        assert isinstance(self.server, _Server)
        known = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer(200 if known else 404, self.server.token)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    status, text, token = 404, "", ""
    demands: tuple[str, str] | None = None

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/latest/meta-data/spot/instance-action"


@pytest.fixture
def cloud() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Cloud) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert noticed(str(path)) == ""
    path.touch()
    assert noticed(str(path)) == f"the file {path} is there"


@pytest.mark.parametrize(
    ("status", "text", "found"),
    [
        (404, "Not Found", False),
        (500, "", False),
        (200, "FALSE", False),
        (200, "NONE", False),
        (200, "", False),
        (200, '{"action": "terminate"}', True),
        (200, "TRUE", True),
    ],
)
def test_an_answer_may_be_a_notice(cloud: _Server, status: int, text: str, *, found: bool) -> None:
    cloud.status, cloud.text = status, text
    assert bool(noticed(cloud.url())) == found
    if found:
        assert text in noticed(cloud.url())


def test_a_token_is_fetched_where_one_is_demanded(cloud: _Server) -> None:
    cloud.status, cloud.text, cloud.token = 200, '{"action": "stop"}', "secret"
    assert "stop" in noticed(cloud.url())
    cloud.status = 404
    assert noticed(cloud.url()) == ""


@pytest.mark.parametrize("header", [("Metadata-Flavor", "Google"), ("Metadata", "true")])
def test_the_headers_of_clouds_are_there(cloud: _Server, header: tuple[str, str]) -> None:
    cloud.status, cloud.text, cloud.demands = 200, "TRUE", header
    assert noticed(cloud.url())


def test_a_service_that_is_not_there_gives_no_notice() -> None:
    assert noticed("http://127.0.0.1:9/") == ""
    assert noticed("http://[nonsense/") == ""


def test_the_watch_ends_with_the_first_notice(tmp_path: Path) -> None:
    found: list[str] = []
    heard = threading.Event()

    def note(why: str) -> None:
        found.append(why)
        heard.set()

    watch = Watch(str(tmp_path / "x"), note, poll_s=0.01)
    watch.start()
    (tmp_path / "x").touch()
    assert heard.wait(30)
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert len(found) == 1


_SCRIPT = """
import os, signal, sys, threading
from horovod.elastic.departure import drained_by_signal
from horovod.errors import RendezvousError

class Member:
    def leave(self, leaving):
        print("told", leaving.why, leaving.host, flush=True)
        told.set()
        if {answer!r} == "gone":
            raise RendezvousError("no driver")
        return {answer!r} == "ours"

told = threading.Event()
{before}
with drained_by_signal(Member()):
    os.kill(os.getpid(), signal.SIGTERM)
    told.wait(30)
    threading.Event().wait({wait})
    print("went on", flush=True)
assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, {handler})
"""


def _run(answer: str, before: str = "", wait: float = 20.0, handler: str = "0") -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(answer=answer, before=before, wait=wait, handler=handler)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_signal_is_a_notice() -> None:
    assert _run("ours", wait=0.0) == (0, ["told SIGTERM False", "went on"])


@pytest.mark.parametrize("answer", ["driver's", "gone"])
def test_the_driver_s_signal_ends_the_process(answer: str) -> None:
    assert _run(answer) == (-signal.SIGTERM, ["told SIGTERM False"])


def test_a_handler_of_the_script_stays() -> None:
    before = "def mine(*_): print('mine', flush=True); told.set()\nsignal.signal(signal.SIGTERM, mine)"
    assert _run("ours", before, wait=0.0, handler="mine") == (0, ["mine", "went on"])


def test_a_forked_child_is_no_worker() -> None:
    before = "parent = os.getpid()"
    script = _SCRIPT.replace(
        "    os.kill(os.getpid(), signal.SIGTERM)\n",
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        threading.Event().wait(30)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
        "    told.set()\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(answer="ours", before=before, wait=0.0, handler="0")],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.splitlines() == ["-15", "went on"]


def test_outside_the_main_thread_nothing_changes() -> None:
    seen = []

    def look() -> None:
        with departure.drained_by_signal(None):  # type: ignore[arg-type]
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(30)
    assert seen == [before]


def test_no_proxy_is_asked(cloud: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.status, cloud.text = 200, "TRUE"
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    assert noticed(cloud.url())


def test_a_signal_right_after_a_fork_ends_the_child() -> None:
    script = _SCRIPT.replace(
        "    os.kill(os.getpid(), signal.SIGTERM)\n",
        "    for _ in range(100):\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            threading.Event().wait(30)\n"
        "            os._exit(0)\n"
        "        os.kill(child, signal.SIGTERM)\n"
        "        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM\n"
        "    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "    told.set()\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(answer="ours", before="", wait=0.0, handler="0")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
