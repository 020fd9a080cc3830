"""The agent as one text, for a Python without this package: its modules, each under its own name."""

from __future__ import annotations

import os
import sys

AGENT = "horovod.launch.agent"
MODULES = (  # each after those that it imports
    "horovod.bootstrap.records",
    "horovod.bootstrap.place.proc",
    "horovod.bootstrap.place.control_groups",
    "horovod.bootstrap.place.cores",
    "horovod.devices.mask",
    *(
        AGENT + "." + name
        for name in (
            "terms",
            "requests",
            "reconnect_socket",
            "launcher",
            "streams",
            "words",
            "processes",
            "process_trees",
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


_TOP = os.path.abspath(__file__)
for _ in range(AGENT.count(".") + 2):
    _TOP = os.path.dirname(_TOP)


def text() -> bytes:
    """Python source of an agent, to be run by ``exec`` in an isolated interpreter without site packages."""
    lines = [f"add({package!r}, '')" for package in _packages()]
    for name in MODULES:
        with open(_path(name) + ".py", encoding="utf-8") as file:
            lines.append(f"add({name!r}, {file.read()!r})")
    lines.append(f"sys.modules[{AGENT + '.program'!r}].main()\n")
    return (_BEGIN + "\n".join(lines)).encode()


def run_from_files() -> None:
    """Run the agent on the machine that has its files: Python keeps them compiled. The packages around them
    are left empty, as they need more than the agent may.
    """
    for name in _packages():
        package = sys.modules[name] = type(sys)(name)
        package.__path__ = [_path(name)]
    from horovod.launch.agent.program import main

    main()


def _packages() -> list[str]:
    """Packages that contain the modules, each after its parent."""
    parts = [name.split(".") for name in MODULES]
    return list(dict.fromkeys(".".join(each[:count]) for each in parts for count in range(1, len(each))))


def _path(name: str) -> str:
    return os.path.join(_TOP, *name.split("."))


if __name__ == "__main__":
    run_from_files()
