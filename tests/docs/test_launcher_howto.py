"""The page that says how to add a launcher names what the code has, and all of the contract."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from horovod.launch.agent_client.connections import Connections
from horovod.launch.contracts import events, fleet
from horovod.launch.contracts.job import Job
from horovod.launch.contracts.registry import LAUNCHERS, Row, load
from horovod.launch.external.fleet import ProgramFleet
from horovod.launch.external.program import Order, StartLine
from horovod.launch.output.streams import Output

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "add-a-launcher.md").read_text(encoding="utf-8")
CLASSES = {each.__name__: each for each in (Connections, Job, Order, Output, Row, StartLine)} | {
    name: getattr(module, name) for module in (events, fleet) for name in module.__all__
}


def named(page: str) -> set[tuple[str, str]]:
    """What stands in the page as ``Class.member``."""
    return set(re.findall(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`", page))


def members(kind: type) -> set[str]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return fields | set(dir(kind))


def test_members_that_the_page_names_exist() -> None:
    wrong = [f"{kind}.{name}" for kind, name in named(PAGE) if name not in members(CLASSES[kind])]
    assert not wrong
    assert len(named(PAGE)) > 20


METHODS = {
    name
    for kind in (fleet.Processes, fleet.ClosedFleet)
    for name, value in vars(kind).items()
    if callable(value) and not name.startswith("_")
}


def test_every_method_of_the_contract_is_in_the_page() -> None:
    assert {name for of, name in named(PAGE) if of == "ClosedFleet"} == METHODS


@pytest.mark.parametrize("event", events.Event.__args__)
def test_every_event_is_in_the_page(event: type) -> None:
    assert f"`{event.__name__}`" in PAGE


@pytest.mark.parametrize("row", LAUNCHERS.values(), ids=LAUNCHERS)
def test_every_launcher_keeps_the_contract(row: Row) -> None:
    made = load(row.closed)
    assert all(callable(getattr(made, name)) for name in METHODS)
    assert (made is ProgramFleet) == bool(row.program) == bool(row.line)
    if row.line:
        assert callable(load(row.line))
