"""What is done with a DataFrame around writing it, on one that only notes what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")

from horovod.spark.common import preparation  # noqa: E402
from horovod.spark.common.columns import ColumnPlan  # noqa: E402


class Frame:
    """A DataFrame whose columns are ``kept`` or not; parts of it know what they are of."""

    def __init__(self, kept: bool = False, of: Frame | None = None) -> None:
        self.kept = kept
        self.of = of

    @property
    def storageLevel(self) -> Any:
        return pyspark.StorageLevel.MEMORY_AND_DISK if self.kept else pyspark.StorageLevel.NONE

    def select(self, columns: Sequence[str]) -> Frame:
        assert columns == ["`a.b`"]
        self.selected = Frame(self.kept)
        return self.selected

    def persist(self, level: Any) -> None:
        assert level == pyspark.StorageLevel.MEMORY_AND_DISK
        self.kept = True

    def unpersist(self) -> None:
        self.kept = False

    def randomSplit(self, shares: Sequence[float], seed: int) -> list[Frame]:
        return [Frame(of=self), Frame(of=self)]


@pytest.mark.parametrize("kept_before", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_both_parts_of_a_random_split_are_of_rows_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, kept_before: bool, fails: bool
) -> None:
    """Otherwise each would evaluate the source anew, which may give other rows."""
    written: list[Frame] = []

    def write(self: Any, df: Frame, plans: Any, path: str, share: float) -> Any:
        assert df.of is not None
        assert df.of.kept
        written.append(df)
        if fails and len(written) == 2:
            raise OSError("no space")
        return {"rows": 2, "bytes": 16}

    class Store:
        def get_train_data_path(self, index: int) -> str:
            return "train"

        get_val_data_path = get_train_data_path

    monkeypatch.setattr(preparation._Writing, "_write", write)
    monkeypatch.setattr(preparation, "metadata_of", lambda plans, facts: {})
    frame = Frame(kept_before)
    store: Any = Store()
    plans = [ColumnPlan("a.b", float, "nochange")]
    job = preparation._Writing(store, 0, 1, 1, 0)
    if fails:
        with pytest.raises(OSError, match="no space"):
            job.write(frame, plans, 0.3)
    else:
        assert job.write(frame, plans, 0.3)[:2] == (2, 2)
    assert [part.of for part in written] == [frame.selected] * 2
    assert frame.selected.kept == kept_before
