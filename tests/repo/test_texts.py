"""Texts of the repository: commands that exist, links that lead somewhere, nothing of one machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

MACHINE_PATH = re.compile(r"(?<![\w./~$}-])/(work|root|home|tmp)(?=/|\b(?![\w-]))")
# Simulated hosts have a /tmp, of their own or in common: there it is a subject, not a place of one machine.
HOST_PATH = re.compile(r"(?<![\w./~$}-])/(work|root|home)(?=/|\b(?![\w-]))")
REGISTRY = re.compile(r"pypi\.org|pythonhosted|download\.pytorch|/opt/pypi")


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    this = Path(__file__).resolve()  # it names what it forbids
    corpus = ROOT / "fuzz" / "corpus"  # bytes, no texts
    return [
        file
        for file in files
        if file.is_file() and file.suffix != ".png" and file != this and corpus not in file.parents
    ]


def test_the_former_name_is_left_where_its_key_is_taken_over() -> None:
    """Whoever installed by that name would get a stranger's package."""
    former = re.compile("rueda", re.IGNORECASE)
    found = {
        file.relative_to(ROOT).as_posix()
        for file in tracked()
        if former.search(str(file.relative_to(ROOT))) or former.search(file.read_text())
    }
    assert found == {"src/horovod/bootstrap/trust/secret.py", "docs/install.md"}


def test_no_path_of_a_machine_and_no_registry_in_tracked_files() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in tracked()
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (HOST_PATH if "hosts" in file.parts else MACHINE_PATH).search(line) or REGISTRY.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_commands_in_texts_are_targets(page: Path) -> None:
    code = re.findall(r"`[^`\n]+`|^    .*$", page.read_text(), re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(code)))
    assert named <= TARGETS, named - TARGETS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_files_named_in_texts_exist() -> None:
    wrong = []
    for page in PAGES:
        for name in re.findall(
            r"`((?:core|src|tests|docs|examples|benchmarks)/[\w./-]+\.\w+)`", page.read_text()
        ):
            if not (ROOT / name).exists():
                wrong.append(f"{page.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_tests_named_in_texts_exist() -> None:
    wrong = []
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w./-]+)::(\w+)`", page.read_text()):
            path = ROOT / file
            source = path.read_text() if path.exists() else ""
            if not re.search(rf"^(def |TEST\w*\(\w+, ){name}\b", source, re.MULTILINE):
                wrong.append(f"{page.relative_to(ROOT)}: {file}::{name}")
    assert wrong == []


# A header declares one, or a struct inside it, from the line of its name to the brace in that line's column.
CLASS = re.compile(
    r"^( *)(?:class|struct|enum class|enum) (?:alignas\S+ )?([\w:]+)[^;{}()]*\{(.*?)^\1\}",
    re.MULTILINE | re.DOTALL,
)
MEMBER = re.compile(r"(?<![\w:/.])([A-Za-z_]\w*)::([A-Za-z_]\w*)")


def words_of_classes(text: str) -> Iterator[tuple[str, set[str]]]:
    for match in CLASS.finditer(text):
        yield match[2].rpartition("::")[2], set(re.findall(r"\w+", match[3]))
        yield from words_of_classes(match[3])


def test_members_of_classes_named_in_texts_exist() -> None:
    """Only decisions that are superseded, and the changelog, tell what was."""
    members: dict[str, set[str]] = {}
    for header in (ROOT / "core").rglob("*.h"):
        text = header.read_text()
        for name in re.findall(r"^namespace (\w+)", text, re.MULTILINE):
            members.setdefault(name, set()).update(re.findall(r"\w+", text))
        for name, words in words_of_classes(text):
            members.setdefault(name, set()).update(words)
    assert "submit" in members["Engine"]
    assert "launch" not in members["Engine"]
    wrong = [
        f"{page.relative_to(ROOT)}: {name}::{member}"
        for page in PAGES
        if page.name != "CHANGELOG.md" and "\nStatus: superseded" not in page.read_text()
        for span in re.findall(r"`([^`\n]+)`", page.read_text())
        for name, member in MEMBER.findall(span)
        if name != "std" and member not in members.get(name, ())
    ]
    assert wrong == []


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
BY = r"by \[(\d+)\]\((\d{4}-[a-z0-9-]+\.md)\)"
STATUS = re.compile(
    rf"Status: (?:in force\.|superseded {BY}\.|in force; superseded in part {BY}: [^;]+(?:; {BY}: [^;]+)*\.)"
)


def test_numbers_of_decisions_are_used_once() -> None:
    assert len(DECISIONS) > 70
    numbers = [page.name[:4] for page in DECISIONS]
    assert [number for number in set(numbers) if numbers.count(number) > 1] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_says_below_its_title_whether_it_is_in_force(page: Path) -> None:
    title, blank, status, below = page.read_text().split("\n")[:4]
    number = int(page.name[:4])
    assert re.fullmatch(rf"# {number}\. \S.*", title)
    assert (blank, below) == ("", "")
    assert STATUS.fullmatch(status), status
    for other, file in re.findall(BY, status):
        assert int(file[:4]) == int(other) != number
        assert (page.parent / file).is_file(), file


def test_every_decision_has_a_row_in_the_index() -> None:
    rows = []
    for page in DECISIONS:
        title, _, status = page.read_text().split("\n")[:3]
        *others, last = [number for number, _ in re.findall(BY, status)] or [""]
        numbers = f"{', '.join(others)} and {last}" if others else last
        how = "superseded in part by" if "in part" in status else "superseded by"
        rows.append(f"* [{title[2:]}]({page.name})" + (f", {how} {numbers}" if last else ""))
    index = (ROOT / "docs" / "decisions" / "README.md").read_text().splitlines()
    assert sorted(line for line in index if line.startswith("* ")) == sorted(rows)


def test_what_holds_against_an_attacker_names_its_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("## Who can do what")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines() if row.startswith("|")][2:]
    attackers = [who.strip() for who, _, _ in rows if who.strip()]
    assert len(attackers) == 4
    without = [what for _, what, tests in rows if not re.fullmatch(r" (`tests/[\w./-]+::\w+`(, )?)+ ", tests)]
    assert [what.strip() for what in without if not what.startswith(" may: ")] == []
    assert len(without) <= len(attackers), "what remains possible is said once for each"


def test_loop_in_the_readme_uses_names_that_exist() -> None:
    import horovod.torch as hvd

    (loop,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    used = {
        node.attr
        for node in ast.walk(ast.parse(loop))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hvd"
    }
    assert used
    assert [name for name in sorted(used) if not hasattr(hvd, name)] == []


def test_every_error_is_documented() -> None:
    from horovod import errors

    page = (ROOT / "docs" / "errors.md").read_text()
    named = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert [name for name in named if name != "HorovodError" and f"| `{name}` |" not in page] == []
    assert [code for code in errors.CORE_CODES if f"`{code}`" not in page] == []
