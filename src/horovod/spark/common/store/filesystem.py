"""Stores on filesystems that fsspec knows: a folder, an object store, the mount of Databricks and others."""

from __future__ import annotations

import os
import posixpath
import re
import socket
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK

from horovod.errors import DataStoreError, InvalidArgumentError, deprecated
from horovod.spark.common.store.base import Store, user_name
from horovod.spark.task import host_hash, is_databricks

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "LocalStore",
    "Sync",
    "TemporaryFolder",
]

_LOGS = "logs"
_DBFS = re.compile(r"(?:dbfs:(?!//)|file:/dbfs(?=/|$)|file:///dbfs(?=/|$)|/dbfs(?=/|$))(?P<path>(?:/.*)?)")


class Sync:
    """Copies what is new or has changed in a folder since its last call; nothing is taken away.

    Args:
        put: copies one file to the store.
        target: the folder in the store.
    """

    def __init__(self, put: Callable[[str, str], None], target: str) -> None:
        self._put = put
        self._target = target
        self._copied: dict[
            str, tuple[int, int]
        ] = {}  # path in the folder -> time and size of what was copied

    def __call__(self, folder: str) -> None:
        for parent, _, names in os.walk(folder, followlinks=True):
            for name in sorted(names):
                file = Path(parent) / name
                inner = file.relative_to(folder).as_posix()
                state = file.stat()
                seen = (state.st_mtime_ns, state.st_size)
                if self._copied.get(inner) != seen:
                    self._put(str(file), f"{self._target}/{inner}")
                    self._copied[inner] = seen


class TemporaryFolder:
    """Makes temporary folders for one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __call__(self) -> AbstractContextManager[str]:
        return tempfile.TemporaryDirectory(prefix=f"{self._run_id}-".replace(os.sep, "-"))


class AbstractFilesystemStore(Store):
    """Base of the stores on filesystems. Instances can be pickled.

    Args:
        prefix_path: below which everything lies.
        train_path, val_path, test_path, runs_path: other places than ``intermediate_train_data``,
            ``intermediate_val_data``, ``intermediate_test_data`` and ``runs`` below it.
        save_runs: whether checkpoints and logs are kept.
        storage_options: for fsspec: keys, endpoints and the like.
        checkpoint_filename: by default ``checkpoint``.
    """

    default_checkpoint_filename = "checkpoint"

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self._options = dict(storage_options or {})
        self._filesystem: Any = None
        self.prefix_path = self.get_full_path(prefix_path).rstrip("/")
        self._train_path = self._full_or("intermediate_train_data", train_path)
        self._val_path = self._full_or("intermediate_val_data", val_path)
        self._test_path = self._full_or("intermediate_test_data", test_path)
        self._runs_path = self._full_or("runs", runs_path)
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or self.default_checkpoint_filename

    # -- paths ----------------------------------------------------------------------------------------------

    def get_full_path(self, path: str) -> str:
        """``path`` with its scheme."""
        raise NotImplementedError

    def get_localized_path(self, path: str) -> str:
        """``path`` as the filesystem itself calls it, without a scheme."""
        return str(self.fs._strip_protocol(self.get_full_path(path)))

    def get_full_path_fn(self) -> Callable[[str], str]:
        """:meth:`get_full_path`, as a function that can be pickled."""
        return self.get_full_path

    def get_train_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._test_path, idx)

    def get_data_metadata_path(self, path: str) -> str:
        """Path at which this host can keep the metadata of the data at ``path``."""
        return f"{self.get_localized_path(path).rstrip('/')}_{host_hash()}_cached_metadata.pkl"

    def get_runs_path(self) -> str:
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        return f"{self._runs_path}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        return f"{self.get_run_path(run_id)}/{self.get_checkpoint_filename()}" if self._save_runs else None

    def get_logs_path(self, run_id: str) -> str | None:
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename

    def get_logs_subdir(self) -> str:
        return _LOGS

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        folder = self.get_run_path(run_id)
        if not self.exists(folder):
            return []
        place = self.get_localized_path(folder)
        found = sorted(file for file in self.fs.find(place) if file.endswith(suffix))
        return [f"{folder}/{posixpath.relpath(file, place)}" for file in found]

    # -- files ----------------------------------------------------------------------------------------------

    @property
    def fs(self) -> Any:
        """The filesystem, of fsspec."""
        if self._filesystem is None:
            self._filesystem = self._open_filesystem()
        return self._filesystem

    @property
    def storage_options(self) -> dict[str, Any]:
        return dict(self._options)

    def saving_runs(self) -> bool:
        return self._save_runs

    def exists(self, path: str) -> bool:
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        with self.fs.open(self.get_localized_path(path), "rb") as file:
            content: bytes = file.read()
        return content

    def write_text(self, path: str, text: str) -> None:
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file as a whole: nobody reads half of it.

        Raises:
            DataStoreError: it cannot be written.
        """
        self._write(path, lambda place: self.fs.pipe_file(place, content))

    def put(self, file: str, path: str) -> None:
        """Copy a file of this machine to ``path``, as a whole.

        Raises:
            DataStoreError: it cannot be written.
        """
        self._write(path, lambda place: self.fs.put_file(file, place))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything below it; nothing, if there is none."""
        if self.exists(path):
            self.fs.rm(self.get_localized_path(path), recursive=True)

    def check_writable(self, path: str) -> None:
        probe = f"{path.rstrip('/')}/.writable-{uuid.uuid4().hex}"
        self.write_bytes(probe, b"")
        self.remove(probe)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        return TemporaryFolder(run_id)

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        return Sync(self.put, self.get_run_path(run_id))

    def is_parquet_dataset(self, path: str) -> bool:
        try:
            return bool(self.get_parquet_dataset(path).files)
        except (OSError, ValueError):
            return False

    def get_parquet_dataset(self, path: str) -> Dataset:
        from pyarrow import dataset, fs

        files = fs.PyFileSystem(fs.FSSpecHandler(self.fs))
        return dataset.dataset(self.get_localized_path(path), filesystem=files, format="parquet")

    def read_serialized_keras_model(self, ckpt_path: str, model: Any, custom_objects: Any) -> bytes:
        """The file of a checkpoint. A hook: a store that keeps models otherwise makes use of the rest.

        Args:
            model, custom_objects: the model that was trained, and what it consists of.
        """
        del model, custom_objects
        return self.read(ckpt_path)

    # -- parts ----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_filesystem": None}  # connections are made anew where they are used

    def _open_filesystem(self) -> Any:
        raise NotImplementedError

    def _full_or(self, default: str, path: str | None) -> str:
        return f"{self.prefix_path}/{default}" if path is None else self.get_full_path(path).rstrip("/")

    def _write(self, path: str, write: Callable[[str], None]) -> None:
        place = self.get_localized_path(path)
        try:
            self.fs.makedirs(posixpath.dirname(place), exist_ok=True)
            self._replace(place, write)
        except Exception as error:  # each filesystem has errors of its own
            raise DataStoreError(
                f"Cannot write {path} as {user_name()} on {socket.gethostname()}: "
                f"{type(error).__name__}: {error}. Let this user write there, or give the store another "
                "path. The driver and all executors must be able to write to a store.",
                path=path,
            ) from error

    def _replace(self, place: str, write: Callable[[str], None]) -> None:
        """Write a file so that it is there as a whole or not at all; object stores do so by themselves."""
        write(place)

    def _replace_by_renaming(
        self, place: str, write: Callable[[str], None], rename: Callable[[str, str], None]
    ) -> None:
        temporary = f"{posixpath.dirname(place)}/.{posixpath.basename(place)}.{uuid.uuid4().hex}"
        try:
            write(temporary)
            rename(temporary, place)
        except BaseException:
            if self.fs.exists(temporary):
                self.fs.rm_file(temporary)
            raise


class FilesystemStore(AbstractFilesystemStore):
    """A store at any URL that fsspec knows; a path without a scheme is a folder of this machine.

    Examples::

        FilesystemStore("/mnt/shared/training")
        FilesystemStore("s3://bucket/training", storage_options={"endpoint_url": "http://..."})  # needs s3fs
        FilesystemStore("gs://bucket/training")  # needs gcsfs

    Spark itself writes the training data: its configuration must have a filesystem for the scheme, too.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        self._protocol = _protocol(prefix_path)
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether fsspec knows the scheme of ``path``."""
        return _protocol(path) in fsspec.available_protocols()

    def get_full_path(self, path: str) -> str:
        if not path:
            raise InvalidArgumentError("A path of a store is empty.")
        if _protocol(path) != "file":
            return path
        return f"file://{os.path.abspath(_without_scheme(path))}"

    def get_filesystem(self) -> Any:
        """The filesystem, of fsspec."""
        return self.fs

    def copy(
        self, lpath: str, rpath: str, recursive: bool = False, callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        """Copy a file of this machine, or a folder, to the store.

        Args:
            lpath: on this machine.
            rpath: in the store.
            callback: of fsspec, is told how far it is.
            kwargs: for fsspec's ``put``.
        """
        self.fs.put(lpath, self.get_localized_path(rpath), recursive=recursive, callback=callback, **kwargs)

    def _open_filesystem(self) -> Any:
        try:
            return fsspec.filesystem(self._protocol, **self._options)
        except ImportError as error:
            raise InvalidArgumentError(f"A store at {self._protocol}:// cannot be opened: {error}") from error
        except ValueError as error:
            raise InvalidArgumentError(
                f"A store at {self._protocol}:// cannot be opened: {error}. fsspec knows: "
                f"{', '.join(sorted(fsspec.available_protocols()))}."
            ) from error

    def _replace(self, place: str, write: Callable[[str], None]) -> None:
        if self._protocol == "file":
            self._replace_by_renaming(place, write, os.replace)
        else:
            write(place)


class LocalStore(FilesystemStore):
    """Another name of :class:`FilesystemStore`, for scripts that have it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        deprecated("LocalStore is another name of FilesystemStore: use that, or Store.create(path).")
        super().__init__(*args, **kwargs)


def _protocol(path: str) -> str:
    """Of a URL; ``"file"`` of a path without one, and of ``file:/path``, as Spark writes it."""
    return path.partition("://")[0] if "://" in path else "file"


def _without_scheme(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def _numbered(path: str, number: int | None) -> str:
    return path if number is None else f"{path}.{number}"


class DBFSLocalStore(FilesystemStore):
    """A store on DBFS, reached through its mount at ``/dbfs``.

    Args:
        prefix_path: ``/dbfs/path``, ``dbfs:/path``, ``file:/dbfs/path`` or ``file:///dbfs/path``.
        args, kwargs: as for :class:`AbstractFilesystemStore`; the checkpoint is called ``checkpoint.tf``.
    """

    default_checkpoint_filename = "checkpoint.tf"

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether this process runs on Databricks and ``path`` is on DBFS."""
        return is_databricks() and cls.matches_dbfs(path)

    @staticmethod
    def matches_dbfs(path: str) -> bool:
        """Return whether ``path`` is on DBFS."""
        return _DBFS.fullmatch(path) is not None

    @staticmethod
    def normalize_path(path: str) -> str:
        """``path`` below ``/dbfs``.

        Raises:
            ValueError: it is not on DBFS.
        """
        found = _DBFS.fullmatch(path)
        if found is None:
            raise InvalidArgumentError(
                f"{path!r} is not on DBFS: write /dbfs/path, dbfs:/path or file:///dbfs/path."
            )
        return f"/dbfs{found['path']}"

    def get_full_path(self, path: str) -> str:
        return super().get_full_path(self.normalize_path(path))

    def get_localized_path(self, path: str) -> str:
        return self.normalize_path(path)
