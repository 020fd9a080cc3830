"""Which class moves the bytes, and what is said if there is none."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from horovod.backends import Backend, load
from horovod.bootstrap.mesh.agreement import agree_on_operations
from horovod.bootstrap.place import mpi_library
from horovod.config import Config
from horovod.errors import ConfigError


class Good(Backend):
    def send(self, peer: int, data: memoryview) -> None: ...

    def recv(self, peer: int, data: memoryview) -> None: ...


class Deaf:
    def send(self, peer: int, data: memoryview) -> None: ...


def chosen(operations: str) -> Any:
    return load(Config.from_environ({"HOROVOD_CPU_OPERATIONS": operations}))


@pytest.mark.parametrize("own", ["", "gloo", "Gloo"])
def test_the_own_transports_need_no_class(own: str) -> None:
    assert chosen(own) is None


def test_a_class_is_found_by_module_and_name() -> None:
    kind, name = chosen(f"{__name__}:Good")
    assert kind.__name__ == name == "Good"


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ("ccl", "oneCCL is not supported"),
        ("nonsense", "gloo, mpi, or module:Class"),
        ("no_such_module:Class", "No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:Deaf", "Deaf is not a backend: it has no recv"),
    ],
)
def test_what_cannot_be_chosen_is_an_error_that_names_the_variable(operations: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        chosen(operations)
    assert caught.value.variable == "HOROVOD_CPU_OPERATIONS"


def test_without_mpi4py_mpi_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not mpi_library.usable()
    with pytest.raises(ConfigError, match="pip install mpi4py"):
        chosen("mpi")


def test_ranks_that_differ_are_told_both() -> None:
    agree_on_operations(["gloo", "gloo"])
    with pytest.raises(ConfigError, match="is gloo on rank 0 and mpi on rank 2") as caught:
        agree_on_operations(["gloo", "gloo", "mpi"])
    assert caught.value.variable == "HOROVOD_CPU_OPERATIONS"


def test_the_base_has_no_verb_of_its_own() -> None:
    for verb in (
        "send",
        "recv",
        "allreduce",
        "allgatherv",
        "broadcast",
        "reducescatterv",
        "alltoallv",
        "barrier",
    ):
        assert not hasattr(Backend, verb), f"a default of {verb} in the base would replace the engine's own"
