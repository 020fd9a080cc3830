"""Every public name has a docstring, and stands with it in the pages of docs/reference."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.site.reference import Entry, Unknown, described, entries, expanded

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
MODULES = [
    "horovod",
    "horovod.arrays",
    "horovod.data",
    "horovod.data.parquet",
    "horovod.elastic.notification",
    "horovod.elastic.run",
    "horovod.elastic.sampler",
    "horovod.elastic.state",
    "horovod.errors",
    "horovod.keras",
    "horovod.keras.callbacks",
    "horovod.keras.elastic",
    "horovod.observe",
    "horovod.runner.elastic.discovery",
    "horovod.runner.elastic.driver",
    "horovod.tensorflow",
    "horovod.tensorflow.data",
    "horovod.tensorflow.elastic",
    "horovod.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic",
    "horovod.torch",
    "horovod.torch.elastic",
]


def public(name: str) -> dict[str, Any]:
    """What a module offers, without modules."""
    module = importlib.import_module(name)
    offered = {each: getattr(module, each) for each in vars(module)["__all__"]}
    return {each: value for each, value in offered.items() if not isinstance(value, types.ModuleType)}


def without_docstring(name: str, value: Any) -> Iterator[str]:
    """``value`` and the public methods of a class that have none, not even that of a base class."""
    if not inspect.getdoc(value):
        yield name
    for attribute in dir(value) if inspect.isclass(value) and value.__module__.startswith("horovod") else []:
        member = inspect.getattr_static(value, attribute)
        ours = getattr(getattr(member, "fget", member), "__module__", None) or ""
        if any(
            attribute in vars(base) for base in value.__mro__ if not base.__module__.startswith("horovod")
        ):
            continue  # a hook of Keras, say: the class that defines it describes it
        if not attribute.startswith("_") and str(ours).startswith("horovod"):
            yield from () if inspect.getdoc(getattr(value, attribute)) else [f"{name}.{attribute}"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_callable_has_a_docstring(module: str) -> None:
    callables = {name: value for name, value in public(module).items() if callable(value)}
    assert [each for name, value in callables.items() for each in without_docstring(name, value)] == []


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module: str) -> None:
    there = {entry.name for page in PAGES for entry in entries(page.read_text()) if entry.module == module}
    assert set(public(module)) - there == set(), "add these to docs/reference"
    assert there - set(public(module)) == set(), "the module does not offer these"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_what_is_read_from_the_sources_is_what_users_get(page: Path) -> None:
    wrong = []
    for entry in entries(page.read_text()):
        value = getattr(importlib.import_module(entry.module), entry.name)
        if not entry.text and callable(value) and entry.found().doc != inspect.cleandoc(value.__doc__ or ""):
            wrong.append(f"{entry.module}.{entry.name}")
        if not callable(value) and not entry.text:
            wrong.append(f"{entry.module}.{entry.name}: say what this value is")
        assert described(entry, str)
    assert wrong == []


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Unknown, match=r"horovod\.torch\.alreduce is neither"):
        Entry("horovod.torch", "alreduce").found()
    with pytest.raises(Unknown, match="is no line of a block"):
        expanded("```{api} horovod.torch\nall reduce\n```\n", str)
    with pytest.raises(Unknown, match="say what it is, after a colon"):
        expanded("```{api} horovod.torch\nSum\n```\n", str)


def test_a_method_of_an_instance_is_described_without_self() -> None:
    text = expanded("```{api} horovod.torch\nstart_timeline\n```\n", str)
    assert ".. py:function:: start_timeline(file_path: str | os.PathLike[str], " in text
    assert "mark_cycles: bool=False) -> None" in text
