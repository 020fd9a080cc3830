"""The Dockerfiles keep the rules that linters check; their steps are run by hand: docker/try_steps.py."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from docker.steps import Stage, Step, stages, steps

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("*Dockerfile*"))


def faults(file: Path) -> list[str]:
    found = []
    known: list[str] = []
    for stage in stages(file):
        if not re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", stage.image) and stage.image not in known:
            found.append(f"{stage.image}: name a version of the image, not latest")
        for step in stage.steps:
            found += [f"line {step.line}: {fault}" for fault in faults_of(step, known)]
        known.append(stage.name)
    return [*found, *faults_of_last(stages(file)[-1])]


def faults_of(step: Step, known: list[str]) -> list[str]:
    """What a linter would say of one step; ``known``: the stages before."""
    found = []
    text = step.text
    if step.instruction == "RUN":
        if "apt-get install" in text:
            rules = {
                "apt-get update": "update the lists in the same step",
                "--no-install-recommends": "install without recommended packages",
                "install -y": "apt-get asks: say -y",
                "rm -rf /var/lib/apt/lists/*": "remove the lists in the same step",
            }
            found += [say for needed, say in rules.items() if needed not in text]
        if "pip install" in text and "--no-cache-dir" not in text:
            found.append("pip keeps a cache: say --no-cache-dir")
        if re.search(r"\bsudo\b|\bapt (?!-)", text):
            found.append("sudo is not there, and apt is for terminals")
        if re.search(r"(^|&& |; )cd ", text):
            found.append("use WORKDIR")
        if "|" in re.sub(r"\|\|", "", text):
            found.append("a pipe hides the status of what stands before it")
    if step.instruction == "COPY":
        words = shlex.split(text)
        stage = next((word.split("=", 1)[1] for word in words if word.startswith("--from=")), None)
        sources = [word for word in words if not word.startswith("--")][:-1]
        if stage is not None and stage not in known:
            found.append(f"there is no stage {stage}")
        found += [
            f"{each} does not exist" for each in sources if stage is None and not (ROOT / each).exists()
        ]
    if step.instruction == "WORKDIR" and not text.startswith("/"):
        found.append("give the whole path")
    if step.instruction in {"CMD", "ENTRYPOINT"} and not text.startswith("["):
        found.append("write a list of words: a shell keeps signals for itself")
    return found


def faults_of_last(stage: Stage) -> list[str]:
    users = [step.text for step in stage.steps if step.instruction == "USER"]
    return [] if users and users[-1] != "root" else ["the image runs as root"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_a_dockerfile_has_none_of_the_usual_faults(file: Path) -> None:
    assert faults(file) == []
    commands = [step.text for step in stages(file)[-1].steps if step.instruction == "CMD"]
    named = [word for text in commands for word in json.loads(text) if word.startswith("examples/")]
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = {each.removeprefix("!") for each in ignored if each.startswith("!")}
    for file in FILES:
        for stage in stages(file):
            for step in stage.steps:
                words = shlex.split(step.text)
                if step.instruction == "COPY" and not any(word.startswith("--from=") for word in words):
                    sources = [word for word in words if not word.startswith("--")][:-1]
                    assert set(sources) <= kept


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("FROM debian\nUSER a", "name a version"),
        ("FROM debian:latest\nUSER a", "name a version"),
        ("FROM debian:12\nRUN apt-get install -y x\nUSER a", "update the lists"),
        ("FROM debian:12\nRUN pip install x\nUSER a", "--no-cache-dir"),
        ("FROM debian:12\nRUN cd /x \\\n    && make\nUSER a", "line 2: use WORKDIR"),
        ("FROM debian:12\nRUN a | b\nUSER a", "a pipe hides"),
        ("FROM debian:12\nCOPY nowhere /x\nUSER a", "nowhere does not exist"),
        ("FROM debian:12\nCOPY --from=build /x /x\nUSER a", "no stage build"),
        ("FROM debian:12\nUSER a\nCMD python x", "list of words"),
        ("FROM debian:12\nRUN true", "runs as root"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(text + "\n")
    (said,) = faults(file) if "apt-get" not in text else faults(file)[:1]
    assert fault in said


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: 'RUNN'"):
        steps("FROM debian:12\nRUNN true\n")
