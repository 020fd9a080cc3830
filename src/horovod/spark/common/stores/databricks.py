"""A store on the filesystem of Databricks, which every host has mounted as a folder."""

from __future__ import annotations

import re
from typing import Any

from horovod.errors import InvalidArgumentError
from horovod.spark.common.host import is_databricks
from horovod.spark.common.stores.filesystem import FilesystemStore

__all__ = ["DBFSLocalStore"]

_DBFS = re.compile(r"(?:dbfs:(?!//)|file:/dbfs(?=/|$)|file:///dbfs(?=/|$)|/dbfs(?=/|$))(?P<path>(?:/.*)?)")


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
