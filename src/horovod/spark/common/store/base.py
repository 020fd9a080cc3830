"""Interface of every store, and the part of it that ranks get."""

from __future__ import annotations

import getpass
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

__all__ = ["RemoteStore", "Store", "user_name"]

# The first that matches a path is taken; the last one, if none does: it says what is wrong with the path.
_KINDS: Final = (
    ("horovod.spark.common.store.hdfs", "HDFSStore"),
    ("horovod.spark.common.store.filesystem", "DBFSLocalStore"),
    ("horovod.spark.common.store.filesystem", "FilesystemStore"),
)


class Store(ABC):
    """Keeps the Parquet data that ranks train on, and what a run leaves: checkpoints and logs.

    Paths that it gives are full ones, with the scheme, which Spark and fsspec understand. Every executor must
    reach them: a folder of one machine serves only where all of them run on it, or where it is shared.
    """

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store that fits a path: ``HDFSStore`` for ``hdfs://``, ``DBFSLocalStore`` for DBFS on
        Databricks, ``FilesystemStore`` for everything else.

        Args:
            prefix_path: below which everything lies.
            args, kwargs: for the class.
        """
        for module, name in _KINDS:
            kind = getattr(import_module(module), name)
            if kind.matches(prefix_path):
                break
        made: Store = kind(prefix_path, *args, **kwargs)
        return made

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether ``path`` calls for a store of this class."""
        return False

    @abstractmethod
    def is_parquet_dataset(self, path: str) -> bool:
        """Return whether there are Parquet files at ``path``."""

    @abstractmethod
    def get_parquet_dataset(self, path: str) -> Dataset:
        """The data at ``path``, for pyarrow."""

    @abstractmethod
    def get_train_data_path(self, idx: int | None = None) -> str:
        """Path of the training data, or of those of data set ``idx``."""

    @abstractmethod
    def get_val_data_path(self, idx: int | None = None) -> str:
        """Path of the validation data."""

    @abstractmethod
    def get_test_data_path(self, idx: int | None = None) -> str:
        """Path of the test data."""

    @abstractmethod
    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are kept."""

    @abstractmethod
    def get_runs_path(self) -> str:
        """Below which all runs are."""

    @abstractmethod
    def get_run_path(self, run_id: str) -> str:
        """Path below which everything of one run lies."""

    @abstractmethod
    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The checkpoint of a run; ``None`` if runs are not kept."""

    @abstractmethod
    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """All files of a run whose name ends so, by name."""

    @abstractmethod
    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; ``None`` if runs are not kept."""

    @abstractmethod
    def get_checkpoint_filename(self) -> str:
        """The checkpoint's name in the folder of its run."""

    @abstractmethod
    def get_logs_subdir(self) -> str:
        """The logs' name in the folder of their run."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is something at ``path``."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def write_text(self, path: str, text: str) -> None:
        """Write a file as a whole: nobody reads half of it.

        Raises:
            DataStoreError: it cannot be written.
        """

    @abstractmethod
    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Makes a context manager of a temporary folder on this machine, which a run writes to."""

    @abstractmethod
    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Makes a function that takes a folder on this machine, and copies into the run's folder what is new
        or has changed in it since its last call."""

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> RemoteStore:
        """Return the part of the store that ranks need for one run; it can be pickled."""
        return RemoteStore(self, run_id, dataset_idx)

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which fsspec opens the store's paths; none by default."""
        return {}

    def check_writable(self, path: str) -> None:
        """Make sure, before anything costly begins, that files can be made below ``path``.

        Raises:
            DataStoreError: they cannot.
        """
        self.write_text(f"{path}/.writable", "")


class RemoteStore:
    """Paths and functions for the ranks of one run.

    Attributes:
        saving_runs: whether checkpoints and logs are kept; if not, ``checkpoint_path`` and ``logs_path`` are
            ``None``.
        get_local_output_dir: makes a context manager of a temporary folder.
        sync: copies what has changed in such a folder to ``run_path``.
        storage_options: for fsspec, to open the paths.
    """

    def __init__(self, store: Store, run_id: str, dataset_idx: int | None) -> None:
        self.store = store
        self.train_data_path = store.get_train_data_path(dataset_idx)
        self.val_data_path = store.get_val_data_path(dataset_idx)
        self.test_data_path = store.get_test_data_path(dataset_idx)
        self.saving_runs = store.saving_runs()
        self.runs_path = store.get_runs_path()
        self.run_path = store.get_run_path(run_id)
        self.checkpoint_path = store.get_checkpoint_path(run_id)
        self.logs_path = store.get_logs_path(run_id)
        self.checkpoint_filename = store.get_checkpoint_filename()
        self.logs_subdir = store.get_logs_subdir()
        self.get_local_output_dir = store.get_local_output_dir_fn(run_id)
        self.sync = store.sync_fn(run_id)
        self.storage_options = dict(store.storage_options)

    def exists(self, path: str) -> bool:
        """Return whether there is something at ``path``."""
        return self.store.exists(path)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self.store.read(path)


def user_name() -> str:
    """The user that this process writes as."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # one without a name, as in many containers
