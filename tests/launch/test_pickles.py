"""Objects on their way to processes: what arrives is what was sent, and large memory is not copied."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from horovod.errors import LaunchError
from horovod.launch.calls.modules import ModuleSource, SourcesFinder, install_sources, local_sources
from horovod.launch.calls.pickles import pack, unpack


def carried(value: Any) -> tuple[Any, memoryview]:
    """What arrives, and the memory it arrived in."""
    memory = memoryview(bytearray(b"".join(pack(value))))
    return unpack(memory), memory


def address_range(memory: memoryview) -> range:
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return range(start, start + memory.nbytes)


@pytest.mark.parametrize(
    "value", [None, [1, "ä", {2: b"x"}], b"x" * 100_000, lambda: 3], ids=["none", "nested", "bytes", "lambda"]
)
def test_small_things_arrive(value: Any) -> None:
    got, _ = carried(value)
    assert got() == 3 if callable(value) else got == value


def test_arrays_and_tensors_lie_in_the_memory_they_arrived_in() -> None:
    array = np.arange(100_000, dtype=np.float64)
    tensor = torch.arange(100_000, dtype=torch.bfloat16).view(100, 1000)
    (got_array, got_tensor), memory = carried((array, tensor))
    assert np.array_equal(got_array, array)
    assert torch.equal(got_tensor, tensor)
    assert got_array.ctypes.data in address_range(memory)
    assert got_tensor.data_ptr() in address_range(memory)
    got_array[0] = got_tensor[0, 0] = 7  # writable, as arguments of a call are


def test_a_module_keeps_what_its_parameters_share() -> None:
    layer = torch.nn.Linear(200, 200)
    tied = torch.nn.Sequential(layer, torch.nn.Linear(200, 200))
    tied[1].weight = layer.weight
    tied[1].weight.requires_grad_(False)
    got, _ = carried(tied)
    assert got[0].weight is got[1].weight
    assert isinstance(got[0].weight, torch.nn.Parameter)
    assert not got[0].weight.requires_grad
    assert torch.equal(got(torch.ones(200)), tied(torch.ones(200)))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(200, 200).t()[1:],
        torch.zeros(0),
        torch.zeros(20_000, dtype=torch.complex64).conj(),
        torch.eye(300).to_sparse(),
        torch.ones(20_000, requires_grad=True),
    ],
    ids=["not contiguous", "empty", "conjugated", "sparse", "leaf"],
)
def test_other_tensors_arrive_too(tensor: torch.Tensor) -> None:
    got, _ = carried(tensor)
    assert got.requires_grad == tensor.requires_grad
    assert torch.equal(got.to_dense(), tensor.to_dense())


def test_a_result_from_read_only_memory_can_be_written() -> None:
    memory = memoryview(b"".join(pack(torch.ones(50_000))))
    unpack(memory)[0] = 2.0


@pytest.mark.parametrize("cut", [0, 5, 12, 20, 40, -1])
def test_torn_bytes_are_refused(cut: int) -> None:
    whole = b"".join(pack(np.zeros(20_000)))
    with pytest.raises((LaunchError, EOFError)):
        unpack(memoryview(whole)[: cut if cut >= 0 else len(whole) + cut])


def test_other_bytes_are_refused() -> None:
    with pytest.raises(LaunchError, match="same version"):
        unpack(memoryview(b"GET / HTTP/1.1\r\n\r\n" * 10))


def test_sources_make_modules_with_their_own_names_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "shipped_one": ModuleSource("", True, "/nowhere/shipped_one/__init__.py"),
        "shipped_one.inner": ModuleSource(
            "from . import other\nclass Kind: pass\n", False, "/nowhere/inner.py"
        ),
        "shipped_one.other": ModuleSource(
            "def fail():\n    raise ValueError('x')\n", False, "/nowhere/other.py"
        ),
    }
    monkeypatch.setattr(sys, "meta_path", [SourcesFinder(sources), *sys.meta_path])
    inner = importlib.import_module("shipped_one.inner")
    try:
        assert inner.Kind.__module__ == "shipped_one.inner"
        assert inner.__file__ == "/nowhere/inner.py"
        with pytest.raises(ValueError) as caught:
            inner.other.fail()
        assert str(caught.traceback[-1].path) == "/nowhere/other.py"
    finally:
        for name in sources:
            sys.modules.pop(name, None)


def test_sources_that_come_later_replace_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(value: int) -> ModuleSource:
        return ModuleSource(f"VALUE = {value}\n", False, "/nowhere/shipped.py")

    def value(name: str) -> Any:
        return importlib.import_module(name).VALUE

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    names = ("shipped_a", "shipped_b")
    try:
        install_sources({"shipped_a": text(1), "shipped_b": text(2)})
        assert [value(name) for name in names] == [1, 2]
        before = sys.modules["shipped_b"]
        install_sources({"shipped_a": text(3), "shipped_b": text(2)})
        assert [value(name) for name in names] == [3, 2]
        assert sys.modules["shipped_b"] is before, "its text is the same"
        install_sources({})
        assert value("shipped_a") == 3
        assert len([each for each in sys.meta_path if isinstance(each, SourcesFinder)]) == 1
    finally:
        for name in names:
            sys.modules.pop(name, None)


def test_modules_beside_a_script_are_found_and_installed_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    (tmp_path / "later.py").write_text("VALUE = 2\n")
    (tmp_path / "broken.py").write_bytes(b"# coding: nonsense\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("")
    (tmp_path / "folder" / "deep.py").write_text("VALUE = 3\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import beside, yaml
            from horovod.launch.calls.modules import local_sources
            print(*sorted(local_sources()))
            """
        )
    )
    said = subprocess.run(
        [sys.executable, str(script)], capture_output=True, check=True, timeout=60, cwd="/"
    ).stdout.split()
    assert said == [b"beside", b"folder", b"folder.deep", b"later", b"script"]


def test_a_folder_with_more_than_a_project_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1001):
        (tmp_path / f"module_{number}.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert not [name for name in local_sources() if name.startswith("module_")]
