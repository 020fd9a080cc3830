"""Configuration of a compute job, as a training job has to know it, the file that has it, and the command
line of whatever starts the job.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from horovod.data.compute_service import ComputeClient
from horovod.errors import ConfigError, InvalidArgumentError

__all__ = ["TfDataServiceConfig", "parser_of"]

_MOST_BYTES = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True)
class TfDataServiceConfig:
    """A compute job: where its registry is, and how many parts it has.

    Attributes:
        dispatchers: how many; with several, as many as the training job has ranks.
        workers_per_dispatcher: processes of the compute job for each of them.
        dispatcher_side: which job runs the dispatchers, ``compute`` or ``training``.
        addresses: interface -> hosts and ports of the registry.
        key: opens the registry.
        timeout: seconds that either job waits for the other.

    Raises:
        ValueError: a field makes no sense.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: dict[str, list[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: float = 60
    _shared_jobs: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    SIDES: ClassVar[tuple[str, ...]] = ("compute", "training")

    def __post_init__(self) -> None:
        if self.dispatcher_side not in self.SIDES:
            raise InvalidArgumentError(
                f"dispatcher_side must be one of {', '.join(self.SIDES)}, not {self.dispatcher_side!r}."
            )
        for name in ("dispatchers", "workers_per_dispatcher", "timeout"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be positive, not {getattr(self, name)!r}.")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Talks to the registry. Its ``shutdown()`` ends the compute job."""
        return ComputeClient(self.addresses, self.key, verbose, timeout_s=self.timeout)

    def client_of(self, identity: str) -> ComputeClient:
        """The same, for a client that is called ``identity`` in messages."""
        return ComputeClient(self.addresses, self.key, timeout_s=self.timeout, identity=identity)

    def next_shared_job(self) -> str:
        """A new name for a pipeline that ranks share. Each pipeline needs its own: to a second one of the
        same name TensorFlow gives the elements of the first, or none."""
        count = len(self._shared_jobs)
        self._shared_jobs.append(f"job.{count}" if count else "job")
        return self._shared_jobs[-1]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the key in hexadecimal digits."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {**given, "key": self.key.hex()}

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> TfDataServiceConfig:
        """The opposite of ``to_dict``.

        Raises:
            KeyError, TypeError, ValueError: it is not what ``to_dict`` gives.
        """
        return cls(
            dispatchers=int(config["dispatchers"]),
            workers_per_dispatcher=int(config["workers_per_dispatcher"]),
            dispatcher_side=config["dispatcher_side"],
            addresses={
                interface: [(str(host), int(port)) for host, port in places]
                for interface, places in config["addresses"].items()
            },
            key=bytes.fromhex(config["key"]),
            timeout=config["timeout"],
        )

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Write it as JSON. The file appears at once as a whole, and only this user can read it: it holds the
        key."""
        path = Path(filename)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(self.to_dict(), file)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    @classmethod
    def read(
        cls, filename: str | os.PathLike[str], wait_for_file_creation: bool = False, timeout_s: float = 600.0
    ) -> TfDataServiceConfig:
        """Read what ``write`` wrote.

        Args:
            filename: the file.
            wait_for_file_creation: wait until it exists.
            timeout_s: for so long at most.

        Raises:
            FileNotFoundError: it does not exist.
            TimeoutError: it did not appear in time.
            ConfigError: it is no such file, or others could have read or written it.
        """
        path = Path(filename)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return cls._read(path)
            except FileNotFoundError:
                if not wait_for_file_creation:
                    raise
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"The compute job did not write its configuration file {path} within {timeout_s:g} s. "
                    "Does it run, with this file on its command line, and does this host see that folder?"
                )
            time.sleep(_POLL_S)

    @classmethod
    def _read(cls, path: Path) -> TfDataServiceConfig:
        # If it is a pipe, opening it would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise ConfigError(
                    f"The configuration file {path} holds a key: it must be a file of yours that nobody "
                    f"else can read or write. Run: chmod 600 {path}"
                )
            text = file.read(_MOST_BYTES)
        try:
            return cls.from_dict(json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                f"{path} is no configuration file of a compute job: {reason}. Let compute_worker write it."
            ) from error


def parser_of(program: str, description: str) -> argparse.ArgumentParser:
    """Of ``configfile``, ``--dispatchers``, ``--dispatcher-side`` and ``--timeout``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "configfile",
        help="file that tells the training job where this job is; it holds a key, so it is made readable for "
        "you alone, and removed at the end",
    )
    parser.add_argument(
        "--dispatchers",
        type=int,
        default=1,
        metavar="N",
        help="how many dispatchers: 1, or one for each rank of the training job (default: 1)",
    )
    parser.add_argument(
        "--dispatcher-side",
        choices=TfDataServiceConfig.SIDES,
        default="compute",
        help="which job runs the dispatchers (default: compute)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="seconds that either job waits for the other (default: 60)",
    )
    return parser
