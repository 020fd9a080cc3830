"""Code that pages name: functions are in the files named beside them, and folders are where pages say."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repo.map import core_folders
from tests.repo.tables import ROOT
from tests.repo.test_texts import PAGES

FILE = r"`((?:core|src|tests)/[\w./-]+\.\w+)`"
# `Agent._reap` (`src/horovod/launch/agent/watch.py`), `run_job` in `src/horovod/launch/run.py`
NAMED = re.compile(rf"`([A-Za-z_][\w.:]*)(?:\(\))?` (?:\(|in |of ){FILE}")
# The vocabulary, and what the backends are tested with.
WITHOUT_TESTS = {"core", "core/backends/buffers"}


@cache
def definitions(file: Path) -> frozenset[str]:
    """Names that a module defines: `Class`, `Class.method`, `method`; of other files all words."""
    text = file.read_text()
    if file.suffix != ".py":
        return frozenset(re.findall(r"\w+", text))
    return frozenset(_defined(ast.parse(text), ""))


def _defined(node: ast.AST, owner: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = owner
        names: list[str] = []
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [child.name]
            inner = child.name if isinstance(child, ast.ClassDef) else owner
        elif isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            names += [each.attr for each in targets if isinstance(each, ast.Attribute)]
        for name in names:
            yield name
            yield f"{owner}.{name}"
        yield from _defined(child, inner)


def is_defined(name: str, file: Path) -> bool:
    if file.suffix == ".py":
        return name in definitions(file)
    return definitions(file).issuperset(re.split(r"\.|::", name))


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    _, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title}"
    return rest.partition("\n## ")[0]


def test_names_beside_a_file_are_defined_there() -> None:
    wrong, seen = [], 0
    for page in PAGES:
        text = " ".join(page.read_text().split())
        if page.name == "CHANGELOG.md" or " Status: superseded" in text:
            continue
        for name, path in NAMED.findall(text):
            seen += 1
            file = ROOT / path
            if file.exists() and not is_defined(name, file):
                wrong.append(f"{page.relative_to(ROOT)}: {name} is not in {path}")
    assert seen > 100, "the pattern finds nothing any more"
    assert wrong == []


def test_a_name_counts_where_it_is_defined_only() -> None:
    here = Path(__file__)
    assert is_defined("is_defined", here)
    assert not is_defined("Path", here), "it is imported"
    assert is_defined("Negotiator::submit", ROOT / "core/engine/control/negotiator.h")
    assert not is_defined("Negotiator::launch", ROOT / "core/engine/control/negotiator.h")


def test_ways_and_questions_lead_to_few_files() -> None:
    ways = re.findall(r"^\d\. .*$", section("architecture.md", "Six ways, step by step"), re.MULTILINE)
    assert len(ways) >= 30
    rows = section("architecture.md", "Questions of a newcomer").strip().splitlines()[2:]
    assert len(rows) >= 10
    for row in rows:
        _, question, answer, _ = row.split("|")
        files = set(re.findall(r"`((?:core|src|tests|docs)/[\w./-]+)`", answer))
        assert 1 <= len(files) <= 3, question
        assert all((ROOT / each).exists() for each in files), question


def test_files_that_the_page_of_mutants_judges_exist() -> None:
    text = (ROOT / "docs" / "mutants.md").read_text()
    judged = [re.findall(r"`([^`]+)`", row) for row in re.findall(r"^\| (`core/.*?) \|", text, re.MULTILINE)]
    assert judged
    missing = []
    for folder, *files in judged:
        assert (ROOT / folder).is_dir(), folder
        missing += [each for each in files if not list((ROOT / folder).glob(f"{each}.h"))]
    sources = {name for file in (ROOT / "core").rglob("*.*") for name in (file.stem, file.name)}
    equal = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)
    assert equal
    assert missing == []
    assert [each for each in equal if each not in sources] == []


def test_folders_of_tests_are_those_of_core() -> None:
    tests = ROOT / "tests"
    folders = {file.parent.relative_to(tests).as_posix() for file in (tests / "core").rglob("test_*.cpp")}
    assert folders - {"core"} == set(core_folders()) - WITHOUT_TESTS
