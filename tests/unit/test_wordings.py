"""Sentences that programs around a job look for, word by word, and where they stand."""

from __future__ import annotations

import pickle

import pytest

from horovod import wordings
from horovod.errors import WorkerFailed


def test_the_sentences_are_those_of_horovod() -> None:
    assert wordings.RANKS_FAILED == (
        "Horovod detected that one or more processes exited with non-zero status"
    )
    assert wordings.TASKS_DID_NOT_START == "Timed out waiting for Spark tasks to start"
    assert wordings.too_many_resets(3) == (
        "Horovod was shutdown because number of resets during elastic job exceeded limit: 3"
    )


@pytest.mark.parametrize("own", ["rank 1 on b exited with status 1 after 2.0 s.", ""])
def test_every_failure_of_a_rank_has_its_sentence_once(own: str) -> None:
    error = WorkerFailed(own, rank=1, host="b", exit_code=1)
    assert str(error).startswith(own)
    for each in (error, pickle.loads(pickle.dumps(error)), WorkerFailed(str(error))):
        assert str(each).count(wordings.RANKS_FAILED) == 1
