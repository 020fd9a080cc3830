"""Backends written in Python: objects that move the bytes of the operations between ranks.

``HOROVOD_CPU_OPERATIONS=module:Class`` chooses one; ``docs/howto/write-a-backend-in-python.md`` shows how to
write one, and `contract.py` says what it may be asked to do. ``mpi.py`` is one, over mpi4py.
"""

from __future__ import annotations

import importlib
from typing import Any

from horovod.backends import communicators
from horovod.backends.contract import Backend, Steps, Verbs
from horovod.config import OWN_OPERATIONS, Config
from horovod.errors import ConfigError

__all__ = ["Backend", "Steps", "Verbs", "load"]

_VARIABLE = "HOROVOD_CPU_OPERATIONS"

_NAMES = {"mpi": "horovod.backends.mpi:MpiBackend"}


def load(config: Config) -> tuple[Any, str] | None:
    """The class and its name for messages; None for the engine's own transports.

    Raises:
        ConfigError: there is no such module or class, it lacks a verb, or what it needs is not installed.
    """
    operations = config.cpu_operations
    if operations == OWN_OPERATIONS:
        return None
    if operations == "mpi":
        communicators.load(config.mpi_threads_disable)
    module, _, name = _NAMES.get(operations, operations).partition(":")
    try:
        backend = importlib.import_module(module)
        for part in name.split("."):
            backend = getattr(backend, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{_VARIABLE}={operations}: {error}. It takes gloo (the transports of Farandole), mpi, or "
            "module:Class, a class that this process can import.",
            variable=_VARIABLE,
        ) from error
    missing = [verb for verb in ("send", "recv") if not callable(getattr(backend, verb, None))]
    if missing or not callable(backend):
        raise ConfigError(
            f"{_VARIABLE}={operations}: {name} is not a backend: it has no {' and no '.join(missing)}. "
            "See horovod.backends.contract.",
            variable=_VARIABLE,
        )
    return backend, name
