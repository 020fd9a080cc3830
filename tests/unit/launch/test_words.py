"""What ranks say of themselves, on its way to the launcher."""

from __future__ import annotations

import os
import select
from typing import Any

from horovod.launch.agent.words import Words


class Launcher:
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def say(self, event: str, **more: Any) -> None:
        self.said.append((event, more["rank"], more["line"]))


def test_all_that_was_said_before_a_rank_ended_comes_before_its_end() -> None:
    launcher = Launcher()
    words = Words(launcher, select.poll())  # type: ignore[arg-type]
    ends = [words.add(rank) for rank in range(3)]
    os.write(ends[2], b"a\nb\n")
    os.write(ends[0], b"c\n")
    os.close(ends[1])
    words.catch_up()
    assert launcher.said == [("said", 0, "c"), ("said", 2, "a"), ("said", 2, "b")]
    words.catch_up()
    assert len(launcher.said) == 3
    for rank, end in ((0, ends[0]), (2, ends[2])):
        words.last_of(rank)
        os.close(end)
