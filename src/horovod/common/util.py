"""Helpers that scripts import from ``horovod.common.util``."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from horovod.bootstrap.place import mpi_library
from horovod.bootstrap.place.interpreter import as_here, program_words
from horovod.errors import HorovodVersionMismatchError
from horovod.gradients import groups

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

EXTENSIONS: Final = ["tensorflow", "torch", "mxnet"]
"""The frontends that scripts ask :func:`extension_available` for; it says which there are."""

P = ParamSpec("P")
R = TypeVar("R")


def _cache(f: Callable[P, R]) -> Callable[P, R]:
    """Remember the results of ``f`` by its arguments, for ever."""
    return functools.wraps(f)(functools.lru_cache(maxsize=None)(f))  # type: ignore[return-value]


def get_ext_suffix() -> str:
    """File name suffix of native modules."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Path of the native module ``args`` beside the file ``pkg_path``."""
    directory = os.path.join(os.path.dirname(pkg_path), *args[:-1])
    return os.path.join(directory, args[-1] + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Look for the native module ``args`` beside the file ``pkg_path``.

    Raises:
        ImportError: the native module does not exist.
    """
    path = get_extension_full_path(pkg_path, *args)
    if not os.path.exists(path):
        raise ImportError(f"Extension {ext_name} has not been built: {path} not found (see {ext_env_var}).")


@_cache
def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether ``horovod.<ext_base_name>`` can be used, tried in a process of its own."""
    # Importing a frontend without its native core only warns, hence the look for a name.
    code = f"import horovod.{ext_base_name} as hvd; hvd.init"
    done = subprocess.run(
        [sys.executable, *program_words(code)],
        env=as_here(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if verbose:
        print(f"Extension {ext_base_name} {'is' if done.returncode == 0 else 'is not'} available.")
    return done.returncode == 0


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the frontend can run collectives on accelerators: not supported yet."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Return whether MPI can be used: mpi4py is installed and finds a library. Does not start MPI."""
    return mpi_library.usable()


def gloo_built(verbose: bool = False) -> bool:
    """True: the TCP controller, which scripts know as Gloo, is always there."""
    return True


def nccl_built(verbose: bool = False) -> bool:
    return False


def ddl_built(verbose: bool = False) -> bool:
    return False


def ccl_built(verbose: bool = False) -> bool:
    return False


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables for the time of a block; those given as ``None`` are left alone."""
    changed = {key: value for key, value in kwargs.items() if value is not None}
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """A function of ``(op, average)`` that returns the operator, with the constants of ``reduce_ops``."""

    def resolve(op: int | None, average: bool | None) -> int:
        if op is not None and average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if average is not None:
            warnings.warn(
                "Parameter `average` has been replaced with `op` and will be removed.",
                DeprecationWarning,
                stacklevel=2,
            )
            return int(reduce_ops.Average if average else reduce_ops.Sum)
        return int(reduce_ops.Average) if op is None else op

    return resolve


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[list[Any]]:  # noqa: E741 - the name is part of the interface
    """``n`` consecutive chunks of ``l`` whose lengths differ by at most one, longer ones first."""
    return groups.split_list(l, n)


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """One build serves every version of a framework, so no version is wrong; with ``exception`` it is
    re-raised as what scripts expect of a failed import.

    Raises:
        HorovodVersionMismatchError: ``exception`` is given.
    """
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, "any") from exception


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


@_cache
def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare two versions; ``target`` is ``x.y.z``.

    Raises:
        ValueError: not texts, or ``target`` has another form.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"Versions are texts, got {ver!r} and {target!r}.")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"The version to compare with has the form x.y.z, got {target!r}.")
    have = [int(number) for number in re.findall(r"\d+", ver.split("+")[0])[:3]]
    have += [0] * (3 - len(have))
    return have >= [int(number) for number in target.split(".")]
