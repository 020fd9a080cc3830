"""Process-wide state is where docs/architecture.md says it is, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def root(target: ast.expr) -> str:
    """The variable that an attribute or an element, however deep, is one of."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def parts_assigned(module: ast.AST) -> Iterator[str]:
    """The variables of which an attribute or an element is assigned or deleted."""
    for node in ast.walk(module):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(each, ast.Name):
                    yield root(each)


def imported(module: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def keeps_state(module: ast.Module) -> bool:
    if any(isinstance(node, ast.Global) for node in ast.walk(module)):
        return True
    if re.search(r"functools\.(lru_)?cache\b", ast.unparse(module)):
        return True
    variables = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    if any(variables & set(parts_assigned(function)) for function in functions):
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


# Programs of their own: no script of a user runs in them.
PROGRAMS = ("bench/", "launch/agent/", "launch/launchers/", "launch/contracts/", "runner/")

# Functions that change the module they are asked of, or the process.
CHANGERS = {
    "RegisterGradient",
    "append",
    "filterwarnings",
    "insert",
    "no_gradient",
    "pop",
    "putenv",
    "register",
    "register_at_fork",
    "setdefault",
    "setrlimit",
    "signal",
    "simplefilter",
    "umask",
    "update",
}


def changes_others(module: ast.Module) -> bool:
    """Whether something that the module imports is changed, or the process by it."""
    others = imported(module)
    if others & set(parts_assigned(module)):
        return True
    return any(
        isinstance(node.func, ast.Attribute) and root(node.func) in others and node.func.attr in CHANGERS
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
    )


def test_what_is_changed_of_others_is_listed() -> None:
    sources = ROOT / "src" / "horovod"
    found = {
        file.relative_to(ROOT).as_posix()
        for file in sorted(sources.rglob("*.py"))
        if not file.relative_to(sources).as_posix().startswith(PROGRAMS)
        and changes_others(ast.parse(file.read_text()))
    }
    assert found == listed("What is not ours and is changed in Python") | {
        "src/horovod/torch/shared_gradients.py"  # only looks after its own state in a forked child
    }


@pytest.mark.parametrize(
    "text",
    [
        "import sys\ndef f():\n  sys.exit, x = 1, 2",
        "import os\nos.environ['A'] = '1'",
        "import sys\nsys.meta_path.insert(0, 1)",
        "import jax\njax.config.update('a', 1)",
        "import sys\ndel sys.last_value",
    ],
)
def test_a_module_that_changes_another_is_recognised(text: str) -> None:
    assert changes_others(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "_all = weakref.WeakSet()",
        "made: dict[str, int] = {}",
        "def f():\n  global x\n  x = 1",
        "def f():\n  ONE.last = 1\nONE = Thing()",
        "@functools.lru_cache\ndef f(): ...",
    ],
)
def test_a_module_that_keeps_something_is_recognised(text: str) -> None:
    assert keeps_state(ast.parse(text))


@pytest.mark.parametrize(
    "text", ["  static std::mutex mutex;", "thread_local Tensor mine;", "inline std::atomic<int> made{0};"]
)
def test_a_variable_that_outlives_a_call_is_recognised(text: str) -> None:
    assert CPP_STATE.search(text)
