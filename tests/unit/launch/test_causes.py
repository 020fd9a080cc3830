"""What a launcher learns from the words of ranks."""

from __future__ import annotations

import pytest

from horovod.bootstrap.place.starter import Word, line_of
from horovod.launch.driver.causes import heard, lost_by

SILENT = (
    "is lost: no sign of life for 5 s (its process is stopped), while others waited for it in allreduce.x"
)


@pytest.mark.parametrize(
    ("text", "because", "lost"),
    [
        (f"raised horovod.errors.PeerLostError: rank 1 on host b-7f {SILENT}.", 1, 1),
        (f"horovod.errors.PeerLostError: rank 11 on host b {SILENT}.", 11, 11),
        (f"raised ValueError: rank 2 on host b {SILENT}", 1, None),
        ("horovod.errors.ShutdownError: Horovod has been shut down by rank 1 on host b.", 1, None),
        ("raised horovod.errors.PeerLostError: rank 1 on host b is gone: its process has ended.", 1, None),
        ("", 1, None),
        (f"raised ValueError: rank 1 on host b {SILENT}", None, None),
    ],
)
def test_only_a_rank_that_fell_silent_counts_as_lost(
    text: str, because: int | None, lost: int | None
) -> None:
    assert lost_by(Word(True, text, because)) == lost


def test_full_stop_of_a_rank_does_not_come_beside_that_of_the_sentence() -> None:
    word = heard(line_of(Word(True, "raised OSError: no driver.")))
    assert word is not None
    assert word.text == "raised OSError: no driver"
