"""The Python blocks of a page of text, and running them as one rank.

A block is what stands between ```python and ```. The blocks of a page, in order, are one script. A comment in
the line above a block says otherwise:

    <!-- alone -->              a script of its own, with names and a world of its own
    <!-- not run: why -->       only parsed

and anywhere on a page

    <!-- ranks: 4 -->           run it with that many ranks instead of 2

``python -m tests.docs.snippets FOLDER PAGE...`` runs pages as one rank of a job, one after another, each in a
world of its own, and writes a line of JSON about each to ``FOLDER/RANK.jsonl``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
PAGE_LIMIT_S = 120.0  # importing TensorFlow and Keras alone takes ten seconds of computing

_FENCE = "```"
_MARK = re.compile(r"<!-- (alone|not run: \S.*) -->")
_RANKS = re.compile(r"^<!-- ranks: (\d+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """``line`` is that of its first line of code in the page, from 1."""

    line: int
    code: str
    alone: bool = False
    run: bool = True


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page.

    Raises:
        ValueError: a block is indented, does not end, or is marked in another way.
    """
    found = []
    lines = text.splitlines()
    begin: int | None = None
    for number, line in enumerate(lines):
        if begin is not None:
            if line == _FENCE:
                above = lines[begin - 2] if begin >= 2 else ""
                mark = _MARK.fullmatch(above)
                if above.startswith("<!--") and mark is None and not _RANKS.fullmatch(above):
                    raise ValueError(f"line {begin - 1}: {above!r} is no mark of a block")
                said = mark[1] if mark else ""
                code = "\n".join(lines[begin:number]) + "\n"
                found.append(Block(begin + 1, code, said == "alone", not said.startswith("not run")))
                begin = None
        elif line.lstrip() == f"{_FENCE}python":
            if line[0] != "`":
                raise ValueError(f"line {number + 1}: indented blocks are not run")
            begin = number + 1
    if begin is not None:
        raise ValueError(f"line {begin}: the block does not end")
    return found


def ranks(text: str) -> int:
    """How many ranks run the page."""
    mark = _RANKS.search(text)
    return int(mark[1]) if mark else RANKS


def scripts(page: list[Block]) -> list[list[Block]]:
    """The blocks to run, as scripts."""
    together = [block for block in page if block.run and not block.alone]
    return [*([together] if together else []), *([block] for block in page if block.run and block.alone)]


def compiled(page: Path, block: Block) -> object:
    """The code of ``block``; its tracebacks name page and line."""
    return compile("\n" * (block.line - 1) + block.code, str(page), "exec")


def run_page(page: Path) -> None:
    """Run the scripts of a page one after another."""
    import horovod.torch as hvd

    for script in scripts(blocks(page.read_text())):
        environment = dict(os.environ)
        namespace = {"__name__": "__main__", "__file__": str(page)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what the pages show needs no excuse
            for block in script:
                exec(compiled(page, block), namespace)  # type: ignore[arg-type]
        hvd.shutdown()
        os.environ.clear()
        os.environ.update(environment)


def said(failure: BaseException, page: Path) -> str:
    """Page, line of the block that failed, and the traceback from there on."""
    step = failure.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename != str(page):
        step = step.tb_next
    if step is None:
        return f"{page.relative_to(ROOT)}: {traceback.format_exc()}"
    trace = "".join(traceback.format_exception(type(failure), failure, step))
    return f"{page.relative_to(ROOT)}:{step.tb_lineno}: {trace}"


def main() -> None:
    folder, *pages = sys.argv[1:]
    with Path(folder, f"{os.environ['HOROVOD_RANK']}.jsonl").open("a") as report:
        for name in pages:
            page = ROOT / name
            print(f"{name}:", flush=True)
            faulthandler.dump_traceback_later(PAGE_LIMIT_S, exit=True)
            error = ""
            try:
                run_page(page)
            except BaseException as failure:
                error = said(failure, page)
            report.write(json.dumps({"page": name, "error": error}) + "\n")
            report.flush()
            if error:
                os._exit(1)  # the others wait for this rank: the launcher ends them
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
