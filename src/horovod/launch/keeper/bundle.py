"""The keeper as one text, for Pythons that have nothing of ours: its files, each a module of its own name."""

from __future__ import annotations

import os

PACKAGE = "horovod.launch.keeper"
FILES = (  # each after those that it imports
    "terms",
    "requests",
    "intake",
    "launcher",
    "outputs",
    "words",
    "processes",
    "host",
    "watch",
    "program",
)

_BEGIN = """import sys
def add(name, text):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, name, "exec"), module.__dict__)
"""


def text() -> bytes:
    """What runs a keeper: ``exec`` it, isolated and without site packages."""
    folder = os.path.dirname(os.path.abspath(__file__))
    parts = PACKAGE.split(".")
    lines = [f"add({'.'.join(parts[: count + 1])!r}, '')" for count in range(len(parts))]
    for name in FILES:
        with open(os.path.join(folder, f"{name}.py"), encoding="utf-8") as file:
            lines.append(f"add({f'{PACKAGE}.{name}'!r}, {file.read()!r})")
    lines.append(f"sys.modules[{f'{PACKAGE}.program'!r}].main()\n")
    return (_BEGIN + "\n".join(lines)).encode()


if __name__ == "__main__":
    exec(compile(text(), "keeper", "exec"), {})
