"""The Python of the pages for users is run, on real ranks: see `snippets.py` for how blocks are marked.

All pages of one number of ranks run in one job, as starting Python takes longer than the pages do. A page
that fails ends its job; the pages behind it run in a new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.docs.snippets import PAGE_LIMIT_S, ROOT, blocks, compiled, ranks, scripts

PAGES = [
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if scripts(blocks(page.read_text()))
]
ALL_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_verdicts: dict[str, str] = {}


def run_job(pages: list[str], size: int) -> None:
    """Run ``pages`` until one fails, and note what became of each."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment = {
        **inherited,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), inherited.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory(prefix="snippets-") as folder:
        launch = [sys.executable, "-m", "horovod.runner.launch", "-np", str(size)]
        job = subprocess.run(
            [*launch, sys.executable, "-m", "tests.docs.snippets", folder, *pages],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PAGE_LIMIT_S * (len(pages) + 1),
            check=False,
        )
        said: dict[str, dict[int, str]] = {page: {} for page in pages}
        for rank in range(size):
            report = Path(folder, f"{rank}.jsonl")
            for line in report.read_text().splitlines() if report.exists() else []:
                entry = json.loads(line)
                said[entry["page"]][rank] = entry["error"]
    for page, errors in said.items():
        if len(errors) == size and not any(errors.values()):
            _verdicts[page] = ""
            continue
        wrong = [f"--- rank {rank}\n{error}" for rank, error in sorted(errors.items()) if error]
        output = f"--- output of the job, status {job.returncode}\n{job.stdout[-6000:]}"
        _verdicts[page] = "\n".join([*wrong, output])
        break


def verdict(page: str, wanted: list[str]) -> str:
    """What went wrong on ``page``, one of the pages ``wanted``; an empty text if nothing did."""
    if page not in _verdicts:
        size = ranks((ROOT / page).read_text())
        together = [other for other in wanted if ranks((ROOT / other).read_text()) == size]
        while left := [other for other in together if other not in _verdicts]:
            run_job(left, size)
    return _verdicts[page]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_page_runs(page: str, request: pytest.FixtureRequest) -> None:
    selected = {item.name for item in request.session.items}
    wrong = verdict(page, [other for other in PAGES if f"test_page_runs[{other}]" in selected])
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_can_be_parsed(page: Path) -> None:
    for block in blocks(page.read_text()):
        compiled(page, block)


def test_blocks_are_found_with_their_lines_and_marks() -> None:
    text = """text
```python
a = 1

b = a
```
<!-- alone -->
```python
c = 2
```
    make x
<!-- not run: needs a cluster -->
```python
d
```
```sh
e
```
"""
    first, second, third = blocks(text)
    assert (first.line, first.code, first.alone, first.run) == (3, "a = 1\n\nb = a\n", False, True)
    assert (second.line, second.alone, second.run) == (9, True, True)
    assert (third.line, third.alone, third.run) == (14, False, False)
    assert scripts([first, second, third]) == [[first], [second]]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```python\na", "does not end"),
        ("  ```python\n  a\n  ```", "indented"),
        ("<!-- not run -->\n```python\na\n```", "no mark"),
    ],
)
def test_a_block_that_would_be_missed_is_an_error(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        blocks(text)


def test_a_mark_says_how_many_ranks_run_a_page() -> None:
    assert ranks("# Title\n\n<!-- ranks: 4 -->\n\ntext") == 4
    assert ranks("# Title\n") == 2
