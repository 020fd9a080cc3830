"""No module and no room of the package imports itself by way of others, not even inside functions."""

from graphlib import CycleError, TopologicalSorter

import pytest
from tests.repo.imports import PACKAGE, files, imported, module_of

Graph = dict[str, set[str]]


def module_graph() -> Graph:
    """Each module -> the modules it imports. Who imports `a.b.c` imports the package `a.b`, too, unless it
    lies in there itself."""
    files_of = {module_of(file): file for file in files()}
    graph: Graph = {module_of(stub): set() for stub in PACKAGE.rglob("*.pyi")}  # compiled
    known = files_of.keys() | graph.keys()
    for module, file in files_of.items():
        graph[module] = set()
        for name in imported(file):
            found = name
            while found and found not in known:
                found = found.rpartition(".")[0]
            graph[module].add(found)
            package = found.rpartition(".")[0]
            while package and not module.startswith(f"{package}."):
                graph[module].add(package)
                package = package.rpartition(".")[0]
        graph[module] -= {"", module}
    return graph


def room_graph() -> Graph:
    """The same between the folders and files directly below horovod, and horovod itself."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    graph: Graph = {}
    for module, others in module_graph().items():
        graph.setdefault(room(module), set()).update(map(room, others))
    return {mine: others - {mine} for mine, others in graph.items()}


def circle(graph: Graph) -> list[str]:
    """The modules of one circle, the first one again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]  # it goes from the imported to the importing one
    return []


def test_modules_import_in_no_circle() -> None:
    assert circle(module_graph()) == []


def test_rooms_import_in_no_circle() -> None:
    assert circle(room_graph()) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, ["a", "b", "a"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
    ],
)
def test_circles_are_found(graph: Graph, found: list[str]) -> None:
    assert sorted(set(circle(graph))) == sorted(set(found))
