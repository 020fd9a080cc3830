"""Reaching hosts through an ``ssh`` of our own that runs the command here: many hosts, and odd ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.launch.launching import COMMAND, PYTHON, environment, horovodrun

HOSTS = 24

SSH = """#!/bin/sh
# The last two words are the host and the command.
while [ $# -gt 2 ]; do shift; done
echo "Welcome to $1"
export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" SSH_HOST="$1"
{extra}
exec sh -c "$2"
"""


def fake_ssh(folder: Path, extra: str = "") -> dict[str, str]:
    """An environment in which ``ssh`` is the script above, with `extra` lines."""
    (folder / "ssh").write_text(SSH.replace("{extra}", extra))
    (folder / "ssh").chmod(0o755)
    path = subprocess.run(["sh", "-c", "echo $PATH"], capture_output=True, check=True).stdout.decode().strip()
    return {"PATH": f"{folder}:{path}"}


def named(count: int, slots: int = 1) -> str:
    return ",".join(f"no-such-host-{number}:{slots}" for number in range(count))


def run(
    count: int, *words: str, extra: dict[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return horovodrun("-np", str(count), "-H", named(count), *words, extra=extra, cwd=cwd)


def test_many_hosts_are_reached_at_once(tmp_path: Path) -> None:
    done = run(HOSTS, "sh", "-c", "echo $SSH_HOST; exit 0", extra=fake_ssh(tmp_path))
    assert done.returncode == 0, done.stderr.decode()
    expected = {f"[{number}]<stdout>:no-such-host-{number}" for number in range(HOSTS)}
    assert set(done.stdout.decode().splitlines()) == expected
    assert b"Welcome" not in done.stdout


def test_host_that_is_still_booting_is_tried_again(tmp_path: Path) -> None:
    extra = f'mkdir {tmp_path}/$1-once 2>/dev/null && {{ echo "connect: Connection refused" >&2; exit 255; }}'
    done = horovodrun(
        *("--verbose", "-np", "2", "-H", named(2), "sh", "-c", "echo up"), extra=fake_ssh(tmp_path, extra)
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"up") == 2
    assert done.stderr.count(b"trying again") == 2


def test_time_that_runs_out_is_told_with_the_last_trouble(tmp_path: Path) -> None:
    extra = '[ "$1" = no-such-host-1 ] && exec sleep 60'
    done = run(2, "--start-timeout", "2", "true", extra=fake_ssh(tmp_path, extra))
    assert done.returncode == 124
    assert b"no-such-host-1: no answer within 2 s (--start-timeout)" in done.stderr
    assert b"no-such-host-0:" not in done.stderr


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            "echo 'Account expired'; exit 1",
            "status 1: Welcome to no-such-host-0 / Account expired",
        ),
        ('exec <&-; exec sh -c "$2" < /dev/null', "must pass standard input on"),
        ("exit 0", "must pass standard input on"),
        ("echo 'kex_exchange_identification: what' >&2; kill -9 $$", "ssh was ended by signal 9"),
    ],
)
def test_what_is_no_agent_is_quoted(extra: str, words: str, tmp_path: Path) -> None:
    done = run(1, "true", extra=fake_ssh(tmp_path, extra))
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "no-such-host-0: " in said
    assert words in said


def test_interrupt_while_hosts_are_awaited_ends_at_once(tmp_path: Path) -> None:
    done = run(1, "true", extra=fake_ssh(tmp_path, "kill -INT $PPID; exec sleep 60"))
    assert done.returncode == 130
    assert b"these hosts were awaited: no-such-host-0" in done.stderr


def test_output_that_nobody_reads_slows_ranks_of_other_hosts_and_nothing_else(tmp_path: Path) -> None:
    # More than all buffers on the way; the reader comes late and then gets everything.
    write = f"import os; [os.write(1, b'x' * 79 + b'\\n') for _ in range({1 << 16})]"
    words = [*COMMAND, "-np", "1", "-H", named(1), PYTHON, "-c", write]
    done = subprocess.run(
        ["sh", "-c", '"$@" | { sleep 3; wc -l; }', "sh", *words],
        env=environment(fake_ssh(tmp_path)),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) == 1 << 16
