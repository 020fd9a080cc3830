"""Process-wide state is where docs/architecture.md says it is, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()

# What a module keeps that changes: containers and locks of the standard library, and what has such in it.
KEEPERS = {
    "Collectives",
    "ContextVar",
    "Lock",
    "RLock",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "WorkerNotificationManager",
    "_State",
    "count",
    "defaultdict",
    "deque",
    "local",
}


def listed(heading: str) -> set[str]:
    """The files in the first column of the table below that heading."""
    (rows,) = re.findall(rf"^### {heading}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return {
        name
        for row in re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE)
        for name in re.findall(r"`(.*?)`", row)
    }


# A variable that outlives a call. What is empty for ever has no state.
CPP_STATE = re.compile(
    r"^\s*(?:static|thread_local|inline) (?!constexpr\b)[\w:<>*&, ]+?[&*]? ?"
    r"\b(?!none;|nothing\b)\w+(?: =.*|\{.*|;)$",
    re.MULTILINE,
)


def test_state_of_the_process_in_cpp_is_listed() -> None:
    found = {
        file.relative_to(ROOT).as_posix()
        for file in sorted((ROOT / "core").rglob("*.[hci]*"))
        if CPP_STATE.search(file.read_text())
    }
    assert found == listed("State of the process in C\\+\\+")


def keeps_state(module: ast.Module) -> bool:
    if any(isinstance(node, ast.Global) for node in ast.walk(module)):
        return True
    for node in module.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call):
            function = value.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name.partition("[")[0] in KEEPERS:
                return True
        elif value is not None and ast.unparse(value) in ("[]", "{}") and "__all__" not in ast.unparse(node):
            return True
    return False


def test_state_of_the_process_in_python_is_listed() -> None:
    sources = ROOT / "src" / "horovod"
    found = {
        file.relative_to(ROOT).as_posix()
        for file in sorted(sources.rglob("*.py"))
        if keeps_state(ast.parse(file.read_text()))
    }
    assert found == listed("State of the process in Python")


@pytest.mark.parametrize(
    "text", ["_all = weakref.WeakSet()", "made: dict[str, int] = {}", "def f():\n  global x\n  x = 1"]
)
def test_a_module_that_keeps_something_is_recognised(text: str) -> None:
    assert keeps_state(ast.parse(text))


@pytest.mark.parametrize(
    "text", ["  static std::mutex mutex;", "thread_local Request mine;", "inline std::atomic<int> made{0};"]
)
def test_a_variable_that_outlives_a_call_is_recognised(text: str) -> None:
    assert CPP_STATE.search(text)
