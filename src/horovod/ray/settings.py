"""Settings of executors."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from horovod.errors import ConfigError
from horovod.ray import checks
from horovod.runner.common.util.secret import make_secret_key
from horovod.runner.common.util.timeout import Timeout

__all__ = ["ElasticSettings", "MiniSettings", "keep_identity"]

_LEAST_S = 0.001
_MOST_S = 2e6  # 23 days; ranks wait for each other by poll(), which counts milliseconds in 31 bits
_TOO_LATE = (
    "{activity} took longer than {timeout:g} s. Can the nodes of the cluster reach each other? If they are "
    "only slow: RayExecutor.create_settings(timeout_s=...)."
)


@dataclass
class MiniSettings:
    """Settings of an executor, besides those of its workers.

    Attributes:
        nics: names of the network interfaces that ranks may use; None: those that work.
        verbose: 0: say nothing.
        key: 32 random bytes for services of the user's own. Ranks do not use it: each start of an executor
            makes a key of its own.
        ssh_port, ssh_identity_file: accepted; nothing is started by ssh.
        timeout_s: how many seconds actors may take to start, and ranks to find each other.
        placement_group_timeout_s: how many seconds a placement group may take.
        elastic: set by the executor.

    Raises:
        ConfigError: a limit is no number of seconds.
    """

    nics: Collection[str] | None = None
    verbose: int = 1
    key: bytes | None = field(default_factory=make_secret_key, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    def __post_init__(self) -> None:
        checks.seconds("timeout_s", self.timeout_s, least=_LEAST_S, most=_MOST_S)
        checks.seconds("placement_group_timeout_s", self.placement_group_timeout_s, least=_LEAST_S)

    @property
    def start_timeout(self) -> Timeout:
        """A new limit of ``timeout_s``, which begins now."""
        return Timeout(self.timeout_s, message=_TOO_LATE)


@dataclass
class ElasticSettings(MiniSettings):
    """Settings of :class:`horovod.ray.ElasticRayExecutor`.

    Attributes:
        min_num_proc: ranks that the job goes on with after failures, and that it starts with.
        max_num_proc: ranks that it grows to; None: as many as there are slots.
        reset_limit: changes of the world that are allowed; None: any number.
        elastic_timeout: how many seconds enough slots are waited for.
        discovery: says which hosts there are; None: the executor's own.
    """

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    discovery: Any = None


def keep_identity(ssh_identity_file: str | None, ssh_str: str | None) -> None:
    """Write ``ssh_str`` to the file, for this user only, unless there is one.

    Raises:
        ConfigError: no file is named.
    """
    if not ssh_str:
        return
    if not ssh_identity_file:
        raise ConfigError("create_settings: ssh_str is written to ssh_identity_file, so give that, too.")
    try:
        descriptor = os.open(ssh_identity_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(ssh_str)
