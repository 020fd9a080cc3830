"""Run the steps of a Dockerfile without Docker: each stage in a folder that debootstrap fills, with chroot.

    sudo python -m docker.try_steps FOLDER [--build-arg NAME=VALUE]... [--bind PATH]... [--env NAME=VALUE]...
                                           [--command COMMAND] [--reuse]

Run it by hand when a Dockerfile changes. It needs root, debootstrap, a network and some minutes, and knows
images of Debian only. ``--bind`` shows a file or folder of this machine inside, to read, and ``--env`` sets a
variable, such as PIP_CONFIG_FILE. At the end the ``CMD`` runs, or COMMAND. FOLDER is left as it is, to look
at; ``--reuse`` takes the stages of it that were finished, except the last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from docker.steps import Stage, Step, stages

CONTEXT = Path(__file__).resolve().parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Place:
    """A stage under way."""

    root: Path
    environment: dict[str, str]
    user: str = "root"
    workdir: str = "/"
    command: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        return self.root / os.path.join(self.workdir, path).lstrip("/")

    def run(self, words: list[str]) -> None:
        """Run a program inside, as the user of this moment; ends this script if it fails."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        change = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"
        accounts = [line.split(":") for line in (self.root / "etc" / "passwd").read_text().splitlines()]
        home = ["env", "-i", *variables, *(f"HOME={each[5]}" for each in accounts if each[0] == self.user)]
        done = subprocess.run(
            ["chroot", f"--userspec={self.user}", str(self.root), *home, "/bin/sh", "-c", change], check=False
        )
        if done.returncode != 0:
            sys.exit(f"status {done.returncode}: {shlex.join(words)}")


def fill(stage: Stage, folder: Path, bound: list[Path], variables: dict[str, str]) -> Place:
    """A fresh Debian in ``folder / stage.name``, with ``/dev``, ``/proc`` and what is bound."""
    image = re.fullmatch(r"debian:(\w+)-slim", stage.image)
    if image is None:
        sys.exit(f"{stage.image}: only debian:NAME-slim can be made here")
    root = folder / stage.name
    if root.exists():
        sys.exit(f"{root} exists: give a folder that does not")
    subprocess.run(
        ["debootstrap", "--variant=minbase", image[1], str(root)], check=True, stdout=subprocess.DEVNULL
    )
    for path in ["/dev", "/proc", *map(str, bound)]:
        inner = root / path.lstrip("/")
        if Path(path).is_dir():
            inner.mkdir(parents=True, exist_ok=True)
        else:
            inner.parent.mkdir(parents=True, exist_ok=True)
            inner.touch()
        subprocess.run(["mount", "--bind", path, str(inner)], check=True)
        if path not in ("/dev", "/proc"):
            subprocess.run(["mount", "-o", "remount,bind,ro", str(inner)], check=True)
    # As Docker does: writable for everybody, and of this stage alone.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root / "dev" / "shm")], check=True)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    return Place(root, {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive", **variables})


def leave(root: Path) -> None:
    """Unmount what lies below ``root``, the innermost first."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{root}/")), reverse=True):
        subprocess.run(["umount", mount], check=False)


def copy(place: Place, step: Step, places: dict[str, Place]) -> None:
    words = shlex.split(step.text)
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    begin = places[options["from"]].root if "from" in options else CONTEXT
    goal = place.inside(target)
    for source in sources:
        there = begin / source.lstrip("/")
        if there.is_dir():
            shutil.copytree(
                there, goal, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        else:
            goal.mkdir(parents=True, exist_ok=True)
            shutil.copy(there, goal)
    if "chown" in options:
        subprocess.run(
            ["chroot", str(place.root), "chown", "-R", options["chown"], f"/{goal.relative_to(place.root)}"]
        )


def carry_out(place: Place, step: Step, given: dict[str, str], places: dict[str, Place]) -> None:
    print(f"{step.line:4}: {step.instruction} {step.text}", flush=True)
    if step.instruction == "RUN":
        place.run(["/bin/sh", "-c", step.text])
    elif step.instruction == "COPY":
        copy(place, step, places)
    elif step.instruction == "ARG":
        name, _, value = step.text.partition("=")
        place.environment[name] = given.get(name, value)
    elif step.instruction == "ENV":
        place.environment.update(word.partition("=")[::2] for word in shlex.split(step.text))
    elif step.instruction == "WORKDIR":
        place.workdir = step.text
        place.inside("").mkdir(parents=True, exist_ok=True)
    elif step.instruction == "USER":
        place.user = step.text
    elif step.instruction == "CMD":
        place.command = json.loads(step.text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path, default=CONTEXT / "docker" / "Dockerfile")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--bind", action="append", default=[], type=Path, metavar="PATH")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--command", help="what runs at the end, in place of the CMD")
    parser.add_argument("--reuse", action="store_true", help="do not repeat finished stages, except the last")
    options = parser.parse_args()
    given = dict(each.split("=", 1) for each in options.build_arg)
    variables = dict(each.split("=", 1) for each in options.env)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, Place] = {}
    try:
        *first, last = stages(options.file)
        for stage in [*first, last]:
            print(f"FROM {stage.image} ({stage.name})", flush=True)
            finished = folder / f"{stage.name}.finished"
            if options.reuse and stage is not last and finished.exists():
                places[stage.name] = Place(folder / stage.name, {})
                continue
            place = places[stage.name] = fill(stage, folder, options.bind, variables)
            for step in stage.steps:
                carry_out(place, step, given, places)
            finished.touch()
        command = shlex.split(options.command) if options.command else place.command
        if command:
            print(f"CMD {shlex.join(command)}", flush=True)
            place.run(command)
    finally:
        leave(folder)
    print("every step succeeded")


if __name__ == "__main__":
    main()
