"""How the end of a script is named."""

from __future__ import annotations

import pytest

from horovod.launch.calls.pickles import pack, unpack
from horovod.launch.calls.plain import plain_error
from horovod.runtime import ending
from horovod.runtime.ending import first_failed


def test_an_exit_is_shown_and_sent_as_what_the_script_has_called() -> None:
    error = ending._Exit(3)
    assert ending.describe(error) == "SystemExit: 3"
    assert plain_error(error) == ("SystemExit", (3,))
    again = unpack(memoryview(bytearray(b"".join(pack(error)))))
    assert type(again) is SystemExit
    assert again.code == 3


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("Horovod has been shut down by rank 3 on host a: its script has come to its end", 3),
        ("rank 12 on host b is gone: its process has ended", 12),
        ("the connection between rank 1 on host b and rank 2 on host c has failed: it was reset", 2),
        ("rank 2 on host b: allreduce.x: no memory", None),
    ],
)
def test_errors_of_frameworks_name_a_rank_by_their_text_alone(text: str, rank: int | None) -> None:
    assert first_failed(0, RuntimeError(f"UnknownError: {text} [Op:Allreduce]"), None) == rank
    assert first_failed(2, RuntimeError(text), None) == (None if rank == 2 else rank)
