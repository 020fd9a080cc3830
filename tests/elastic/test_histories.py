"""Long jobs to which everything happens: no hang, no wrong sum, no lost record, nothing left behind.

``FARANDOLE_ELASTIC_EVENTS`` says how many events there are in all (default: those of the gate),
``FARANDOLE_ELASTIC_SEED`` which ones.
"""

from __future__ import annotations

import os
import statistics

import pytest
from tests.elastic.history import HOSTS, OPTIONS, RANKS, History
from tests.elastic.training import Train, check_result

EVENTS = int(os.environ.get("FARANDOLE_ELASTIC_EVENTS", "200"))
SEED = int(os.environ.get("FARANDOLE_ELASTIC_SEED", "1"))
OF_A_JOB = 100
LIMIT_S = 400.0


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("seed", range(SEED, SEED - (-EVENTS // OF_A_JOB)))
def test_history(train: Train, seed: int) -> None:
    with train(HOSTS, *OPTIONS, processes=RANKS, epochs=1 << 40, limit_s=LIMIT_S) as job:
        history = History(job, seed, min(EVENTS, OF_A_JOB))
        history.run()
        check_result(job, None)
    taken = sorted(history.recoveries_s)
    assert taken, history
    print(
        f"{history}; {len(taken)} resets after a death, median {statistics.median(taken):.3f} s, "
        f"most {taken[-1]:.3f} s; {[round(each, 3) for each in taken]}"
    )
