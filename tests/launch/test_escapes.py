"""What ranks print reaches a terminal as text with colours, and a file as it is."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.launching import COMMAND, LIMIT_S, environment

from horovod.launch.output.console import harmless


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"plain \xc3\xa4 text\n", b"plain \xc3\xa4 text\n"),
        (b"\x1b[1;31mred\x1b[0m\n", b"\x1b[1;31mred\x1b[0m\x1b[0m\n"),
        (b"\x1b[8mhidden\nnext\n", b"\x1b[8mhidden\x1b[0m\nnext\n"),
        (b" 10%\r 20%\x1b[K\r", b" 10%\r 20%\x1b[K\r"),
        (b"\b\b\b\b\r 30%\n", b"\r 30%\n"),
        (b"\x1b[2J\x1b[H\x1b[3Aover\n", b"over\n"),
        (b"\x1b]0;title\x07a\x1b]52;c;Zm9v\x1b\\b\n", b"ab\n"),
        (b"\x1b]0;endless\n", b"^[]0;endless\n"),
        (b"\x1bPq#0\x1b\\\x1bc\x1b(0done\n", b"done\n"),
        (b"\x1b[6n\x1b[>c?\n", b"?\n"),
        (b"\xc2\x9b2J and \x9b2J\n", b" and \xef\xbf\xbd2J\n"),
        (b"bell \x07 nul \x00 end\x1b", b"bell ^G nul ^@ end^["),
    ],
)
def test_only_colours_pass(said: bytes, shown: bytes) -> None:
    assert harmless(said) == shown


@given(st.binary(max_size=200))
def test_nothing_that_is_left_is_obeyed(said: bytes) -> None:
    left = harmless(b"\x1b" + said)
    for piece in left.split(b"\x1b")[1:]:
        assert piece[:1] == b"["
        final = piece[1:].lstrip(b"0123456789;:")[:1]
        assert final in (b"m", b"K")
    assert not set(left) & (set(range(0x20)) - {0x09, 0x0A, 0x0D, 0x1B})


def test_a_terminal_gets_it_without_escapes_and_a_pipe_as_it_is() -> None:
    words = [*COMMAND, "-np", "1", "--no-status", "printf", "\\033]0;title\\007shown\\n"]
    piped = subprocess.run(
        words, env=environment(None) | dict(os.environ), capture_output=True, timeout=LIMIT_S, check=True
    )
    assert piped.stdout == b"[0]<stdout>:\x1b]0;title\x07shown\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, env=environment(None) | dict(os.environ), stdout=theirs) as job:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:
            pass  # the other side of the terminal has closed
        assert job.wait(LIMIT_S) == 0
    os.close(ours)
    assert seen == b"[0]<stdout>:shown\r\n"
