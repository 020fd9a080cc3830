"""A store on HDFS."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fsspec

from horovod.errors import InvalidArgumentError
from horovod.spark.common.store.filesystem import AbstractFilesystemStore

__all__ = ["HDFSStore"]

_URL = re.compile(r"(?P<prefix>hdfs://(?P<host>[^/:]*)(?::(?P<port>\d+))?)?(?P<path>/.*)")
_DEFAULT_HOST = "default"
"""For the client's library: the filesystem that Hadoop's configuration names."""


class _Url(NamedTuple):
    """The parts of a path on HDFS.

    Attributes:
        prefix: ``hdfs://`` with host and port, as far as they were there; empty for a mere path.
        offset: where ``path`` begins in the whole.
    """

    prefix: str
    host: str | None
    port: int | None
    path: str
    offset: int


class HDFSStore(AbstractFilesystemStore):
    """A store on HDFS, by way of ``libhdfs`` and pyarrow: Hadoop's client must be installed on every host.

    Args:
        prefix_path: ``hdfs://host:port/path``, ``hdfs:///path`` or ``/path``; without a host it is on the
            filesystem that Hadoop's configuration names.
        host, port: where ``prefix_path`` has none.
        user: as whom; by default the user of the process.
        kerb_ticket: path of a Kerberos ticket cache.
        driver: ``libhdfs``, the only one there is.
        extra_conf: further settings of Hadoop.

    Everything else is as for :class:`AbstractFilesystemStore`.
    """

    def __init__(
        self,
        prefix_path: str,
        *args: Any,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise InvalidArgumentError(f"HDFSStore: the only driver is 'libhdfs', not {driver!r}.")
        url = self.parse_url(prefix_path)
        for what, given, there in (("host", host, url.host), ("port", port, url.port)):
            if given and there and given != there:
                raise InvalidArgumentError(
                    f"HDFSStore: the {what} is {given!r}, but {prefix_path} names {there!r}. Give one."
                )
        self._host = host or url.host
        self._port = port or url.port
        connection = {
            "host": self._host or _DEFAULT_HOST,
            "port": self._port or 0,
            "user": user,
            "kerb_ticket": kerb_ticket,
            "extra_conf": dict(extra_conf) if extra_conf else None,
        }
        super().__init__(prefix_path, *args, **kwargs)
        known = {name: value for name, value in connection.items() if value is not None}
        self._options = {**known, **self._options}

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether ``path`` is a URL of HDFS."""
        return path.startswith("hdfs://")

    @staticmethod
    def parse_url(url: str) -> _Url:
        """The parts of a path: prefix, host, port, path, offset.

        Raises:
            ValueError: it has another scheme, or no path.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise InvalidArgumentError(
                f"{url!r} is no path on HDFS: write hdfs://host:port/path, hdfs:///path or /path."
            )
        port = found["port"]
        return _Url(
            found["prefix"] or "",
            found["host"] or None,
            int(port) if port else None,
            found["path"],
            found.start("path"),
        )

    def get_full_path(self, path: str) -> str:
        url = self.parse_url(path)
        elsewhere = url.host not in (None, self._host)
        host, port = url.host or self._host or "", url.port or (None if elsewhere else self._port)
        return f"hdfs://{host}{f':{port}' if port else ''}{url.path}"

    def get_localized_path(self, path: str) -> str:
        return self.parse_url(path).path

    def exists(self, path: str) -> bool:
        return super().exists(path) or super().exists(_aside(path.rstrip("/")))

    def read(self, path: str) -> bytes:
        for place in (path, _aside(path)):
            try:
                return super().read(place)
            except FileNotFoundError:
                continue
        return super().read(path)  # the next one may have come meanwhile

    def remove(self, path: str) -> None:
        for place in (_aside(path.rstrip("/")), path):
            if super().exists(place):
                self.fs.rm(self.get_localized_path(place), recursive=True)

    def _open_filesystem(self) -> Any:
        return fsspec.filesystem("hdfs", **self._options)

    def _replace(self, place: str, write: Callable[[str], None]) -> None:
        self._replace_by_renaming(place, write, self._rename)

    def _rename(self, temporary: str, place: str) -> None:
        """HDFS renames onto nothing that is there. A process may be killed at any line: the file of before
        then lies aside, where :meth:`read` finds it."""
        aside = _aside(place)
        if self.fs.exists(place):
            if self.fs.exists(aside):
                self.fs.rm_file(aside)
            self.fs.mv(place, aside)
        self.fs.mv(temporary, place)
        if self.fs.exists(aside):
            self.fs.rm_file(aside)


def _aside(path: str) -> str:
    """Name under which a file waits while another one takes its place."""
    return f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.before"
