"""The filesystem that a path is on: pyarrow's own where it has one, else fsspec's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyarrow import fs

from horovod.errors import InvalidArgumentError

__all__ = ["is_local", "resolve"]

_PYARROWS_OWN = {"", "file", "hdfs", "viewfs", "s3", "gs", "gcs"}


def resolve(
    path: str | os.PathLike[str],
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path on it.

    Args:
        path: with or without a scheme.
        filesystem: one of pyarrow or fsspec, which decides.
        storage_options: for fsspec, which is used if there are any.

    Raises:
        ValueError: no such scheme; its package is not installed; ``filesystem`` is none.
    """
    text = os.fspath(path)
    scheme = text.partition("://")[0] if "://" in text else text.partition(":/")[0] if ":/" in text else ""
    if filesystem is not None:
        return _given(text, filesystem)
    if scheme in _PYARROWS_OWN and (not storage_options or scheme in ("", "file")):
        # Files are not mapped: one that another host makes shorter would end this process by a signal.
        if scheme == "":
            return fs.LocalFileSystem(), os.path.abspath(text)
        if scheme == "file":
            # Of "file:///a" and of "file:/a", which Spark writes.
            return fs.LocalFileSystem(), "/" + text.partition(":")[2].lstrip("/")
        found, inner = fs.FileSystem.from_uri(text)
        return found, inner
    return _by_fsspec(text, scheme, storage_options or {})


def is_local(filesystem: fs.FileSystem) -> bool:
    """Return whether files lie on a disk of this machine, as far as is known."""
    return isinstance(filesystem, fs.LocalFileSystem)


def _given(text: str, filesystem: Any) -> tuple[fs.FileSystem, str]:
    if isinstance(filesystem, fs.FileSystem):
        return filesystem, text.partition("://")[2] if "://" in text else text
    if hasattr(filesystem, "open") and hasattr(filesystem, "_strip_protocol"):
        return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(filesystem._strip_protocol(text))
    raise InvalidArgumentError(
        f"filesystem must be one of pyarrow.fs or of fsspec, got {type(filesystem).__name__}."
    )


def _by_fsspec(text: str, scheme: str, options: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    try:
        import fsspec
    except ImportError as error:
        raise InvalidArgumentError(
            f"Reading {text} needs fsspec, which is not installed here. Install it: pip install fsspec"
        ) from error
    try:
        found, inner = fsspec.core.url_to_fs(text, **options)
    except ImportError as error:
        raise InvalidArgumentError(f"fsspec cannot open {scheme}:// here: {error}") from error
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text} is on no filesystem that fsspec or pyarrow know: {error}"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), inner
