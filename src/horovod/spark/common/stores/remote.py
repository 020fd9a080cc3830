"""A store as ranks see it: the paths of one run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.spark.common.stores.base import Store

__all__ = ["RemoteStore"]


@dataclass(frozen=True)
class RemoteStore:
    """Paths and functions for the ranks of one run.

    Attributes:
        saving_runs: whether checkpoints and logs are kept; if not, ``checkpoint_path`` and ``logs_path`` are
            ``None``.
        get_local_output_dir: makes a context manager of a temporary folder.
        sync: copies what has changed in such a folder to ``run_path``.
        storage_options: for fsspec, to open the paths.
    """

    store: Store = field(repr=False)
    train_data_path: str
    val_data_path: str
    test_data_path: str
    saving_runs: bool
    runs_path: str
    run_path: str
    checkpoint_path: str | None
    logs_path: str | None
    checkpoint_filename: str
    logs_subdir: str
    get_local_output_dir: Callable[[], AbstractContextManager[str]] = field(repr=False)
    sync: Callable[[str], None] = field(repr=False)
    storage_options: dict[str, Any] = field(repr=False)

    def exists(self, path: str) -> bool:
        """Return whether there is something at ``path``."""
        return self.store.exists(path)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self.store.read(path)
