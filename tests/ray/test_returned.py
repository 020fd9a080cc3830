"""What an elastic job returns, with a stand-in for the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horovod.errors import LaunchError
from horovod.launch.calls.functions import answer, pack_call

pytest.importorskip("ray", reason="Ray is not installed")

from tests.ray.helpers import settings

from horovod.launch.contracts.job import RankResults
from horovod.ray import elastic_v2
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams


def sent_home(function: Callable[[], Any]) -> bytearray:
    pieces, _ = answer(memoryview(bytearray(b"".join(pack_call(function, (), {})))))
    return bytearray(b"".join(pieces))


def run(monkeypatch: pytest.MonkeyPatch, *sent: bytearray) -> list[Any]:
    """Of a job whose ranks have sent this home, and which has succeeded."""

    def job(_job: Any, _how: Any, _inherited: Any, _console: Any, results: RankResults, make: Any) -> None:
        results.sent.update(enumerate(sent))

    monkeypatch.setattr(elastic_v2, "run_elastic_job", job)
    monkeypatch.setattr(elastic_v2, "require_ray", lambda _: None)
    adapter = ElasticAdapter(ElasticParams(min_workers=1), settings())
    adapter._discovery = elastic_v2.TestDiscovery(1, 2, 0.0, verbose=False)
    return adapter.run(len, [[]])


def dismissed() -> None:
    raise SystemExit(0)


def test_ranks_that_a_job_has_dismissed_take_no_result_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when any of them returns."""
    early, odd = sent_home(lambda: "early"), sent_home(lambda: (False, {1, 2}))
    assert run(monkeypatch, early, sent_home(dismissed), odd) == ["early", (False, {1, 2})]
    assert run(monkeypatch, sent_home(dismissed), early, bytearray()) == ["early"]
    assert run(monkeypatch, sent_home(lambda: (False, 0))) == [(False, 0)]


def test_a_job_without_any_result_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match="raised SystemExit on rank 0, so it has no result"):
        run(monkeypatch, sent_home(dismissed))
    with pytest.raises(LaunchError, match="rank 0 ended without an error, but before it had a result"):
        run(monkeypatch, bytearray())
