"""The completion scripts, run by the shells themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from horovod.launch.options.completion import completion_script
from horovod.launch.options.table import SHELLS, every_option

_LIMIT_S = 20.0


def complete_in_bash(*words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    quoted = " ".join(f"'{word}'" for word in ("horovodrun", *words))
    script = f"""{completion_script("bash")}
COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
_horovodrun; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_that_is_shown_is_completed(shell: str) -> None:
    script = completion_script(shell)
    for option in every_option():
        if option.help:
            for spelling in option.spellings:
                assert (spelling if shell != "fish" else f" {spelling.lstrip('-')}") in script


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_can_read_their_scripts(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = completion_script(shell)
    done = subprocess.run(
        [shell, "-n"], input=script, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_options_values_and_commands() -> None:
    assert complete_in_bash("--fus") == ["--fusion-threshold-mb"]
    assert set(complete_in_bash("-np", "2", "--no-sta")) == {"--no-stall-check", "--no-status"}
    assert complete_in_bash("--log-level", "W") == ["WARNING"]
    assert complete_in_bash("--launcher", "s") == ["ssh", "srun"]
    assert complete_in_bash("--hostfile", "conftest.") == ["conftest.py"]
    assert "python3" in complete_in_bash("-np", "2", "python")


def test_after_the_command_bash_completes_the_commands_own_words() -> None:
    assert complete_in_bash("-np", "2", "python", "--fus") == []
    assert complete_in_bash("-H", "a:1", "python", "conftest.") == ["conftest.py"]
