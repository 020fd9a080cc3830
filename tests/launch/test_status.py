"""The line that tells how far a job is: below the output on a terminal, never in it, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from pathlib import Path

from tests.launch.launching import COMMAND, LIMIT_S, environment, horovodrun

from horovod.launch.output.console import Console, Footer, file_descriptor_sink
from horovod.launch.output.status import Status


def test_footer_leaves_before_output_and_waits_for_the_end_of_a_line() -> None:
    main, terminal = pty.openpty()
    footer = Footer(terminal)
    sink = file_descriptor_sink(terminal, footer=footer)
    footer.show("one")
    footer.show("one")
    sink.write(b"half", "rank 0")
    footer.show("two")
    sink.write(b" line\n", "rank 0")
    footer.show("x" * 200)
    footer.erase()
    footer.erase()
    os.close(terminal)
    assert shown_on(main) == b"one\r\x1b[Khalf line\r\n" + b"x" * 79 + b"\r\x1b[K"


def test_text_tells_what_is_waited_for() -> None:
    status = Status(Console(), wanted=False, hosts=4, ranks=16)
    assert "reaching hosts: 0 of 4" in status.text()
    status.reached = 4
    assert "starting ranks on 4 hosts: 0 of 16 run" in status.text()
    status.running, status.ended = 15, 1
    assert "15 of 16 ranks run on 4 hosts" in status.text()
    status.ending, status.running = True, 3
    assert "ending ranks on 4 hosts: 3 of 16 still run" in status.text()


def on_a_terminal(script: str, wanted: bytes, then: Path) -> bytes:
    """What a job of two shells shows on a terminal. When ``wanted`` is seen, the file ``then`` is made."""
    main, terminal = pty.openpty()
    job = subprocess.Popen(
        [*COMMAND, "-np", "2", "sh", "-c", script],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = shown_on(main, wanted, then)
    assert job.wait(LIMIT_S) == 0
    return seen


def shown_on(main: int, wanted: bytes = b"", then: Path | None = None) -> bytes:
    """Everything that is written to the terminal until all its other ends are closed."""
    seen = b""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            seen += os.read(main, 4096)
        except OSError:
            break
        if then is not None and wanted in seen:
            then.touch()
    os.close(main)
    return seen


def test_line_appears_on_a_terminal_only(tmp_path: Path) -> None:
    script = f"echo begin; while ! test -e {tmp_path}/seen; do sleep 0.05; done; echo end"
    seen = on_a_terminal(script, b"2 of 2 ranks run", tmp_path / "seen")
    assert b"2 of 2 ranks run" in seen
    assert seen.count(b"[0]<stdout>:end\r\n") == 1
    assert seen.endswith((b"\r\n", b"\x1b[K"))
    done = horovodrun("-np", "2", "sh", "-c", "echo begin; sleep 1; echo end")
    assert b"ranks run" not in done.stdout + done.stderr
