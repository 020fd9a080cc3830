"""The keeper as one text, for Pythons that have nothing of ours: its modules, each under its own name."""

from __future__ import annotations

import os

KEEPER = "horovod.launch.keeper"
MODULES = (  # each after those that it imports
    "horovod.bootstrap.proc",
    *(
        KEEPER + "." + name
        for name in (
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
    ),
)

_BEGIN = """import sys
def add(name, text):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, name, "exec"), module.__dict__)
"""


def text() -> bytes:
    """What runs a keeper: ``exec`` it, isolated and without site packages."""
    top = os.path.abspath(__file__)
    for _ in range(KEEPER.count(".") + 2):
        top = os.path.dirname(top)
    lines: list[str] = []
    packages: set[str] = set()
    for name in MODULES:
        parts = name.split(".")
        for package in (".".join(parts[:count]) for count in range(1, len(parts))):
            if package not in packages:
                packages.add(package)
                lines.append(f"add({package!r}, '')")
        with open(os.path.join(top, *parts) + ".py", encoding="utf-8") as file:
            lines.append(f"add({name!r}, {file.read()!r})")
    lines.append(f"sys.modules[{KEEPER + '.program'!r}].main()\n")
    return (_BEGIN + "\n".join(lines)).encode()


if __name__ == "__main__":
    exec(compile(text(), "keeper", "exec"), {})
