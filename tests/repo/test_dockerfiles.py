"""What a linter of Dockerfiles cannot know: that files are there.

`make lint` runs the linter; `docker/try_steps.py` runs the steps, by hand.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from docker.steps import stages, steps

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("*Dockerfile*"))


def copied(file: Path) -> list[tuple[str, str]]:
    """(stage, source) of everything that a file copies; the stage is empty for files of the repository."""
    found = []
    for stage in stages(file):
        for words in (shlex.split(step.text) for step in stage.steps if step.instruction == "COPY"):
            options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
            sources = [word for word in words if not word.startswith("--")][:-1]
            found += [(options.get("from", ""), source) for source in sources]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_what_is_copied_exists_and_is_not_ignored(file: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = {each.removeprefix("!") for each in ignored if each.startswith("!")}
    own = [source for stage, source in copied(file) if not stage]
    assert own
    assert [source for source in own if source not in kept or not (ROOT / source).exists()] == []
    assert {stage for stage, _ in copied(file) if stage} <= {stage.name for stage in stages(file)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_the_image_runs_an_example_and_not_as_root(file: Path) -> None:
    last = {step.instruction: step.text for step in stages(file)[-1].steps}
    assert last["USER"] != "root"
    named = [word for word in json.loads(last["CMD"]) if word.startswith("examples/")]
    assert named
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_instructions_are_read_with_their_lines() -> None:
    found = steps("# a comment\nFROM debian:12\nRUN one \\\n    # within\n    && two\n\nUSER a\n")
    assert [(step.line, step.instruction, step.text) for step in found] == [
        (2, "FROM", "debian:12"),
        (3, "RUN", "one && two"),
        (7, "USER", "a"),
    ]
    with pytest.raises(ValueError, match="line 2: 'RUNN'"):
        steps("FROM debian:12\nRUNN true\n")
