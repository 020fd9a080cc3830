"""Records read from what another process says: everything that is not what a class annotates is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import pytest

from horovod.bootstrap import records
from horovod.bootstrap.records import (
    Malformed,
    cut,
    fields,
    listed,
    mapped,
    paired,
    record,
    seconds,
    text,
    truth,
    whole,
)

Rank = Annotated[int, whole(0, 9)]


class Part(NamedTuple):
    name: str
    share: float = 1.0


@dataclass(frozen=True)
class Whole:
    rank: Rank
    part: Part
    names: tuple[str, ...] = ()
    cause: int | None = None
    told: bool = False


class Plain(SimpleNamespace):
    rank: int
    told: bool = False


class Odd(SimpleNamespace):
    values: dict[str, int]


whole_of = record(Whole)
GOOD: dict[str, Any] = {
    "rank": 3,
    "part": {"name": "a", "share": 2},
    "names": ["x"],
    "cause": 1,
    "told": True,
}


def test_a_record_is_read_field_by_field() -> None:
    assert whole_of(GOOD) == Whole(3, Part("a", 2.0), ("x",), 1, True)
    assert whole_of({"rank": 0, "part": {"name": ""}, "more": 1}) == Whole(0, Part(""))
    assert record(Part, complete=True)({"name": "a", "share": 2}) == Part("a", 2.0)
    plain = record(Plain)({"rank": 1})
    assert (plain.rank, plain.told) == (1, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 10}, "rank is no number from 0 to 9"),
        ({"rank": True}, "rank is no number from 0 to 9"),
        ({"rank": 10**4000}, "rank is no number from 0 to 9"),
        ({"rank": 1.0}, "rank is no number"),
        ({"part": {"name": 3}}, "part.name is no text"),
        ({"part": {}}, "part.name is missing"),
        ({"part": {"name": "", "share": float("nan")}}, "part.share is no number of seconds"),
        ({"part": {"name": "", "share": 10**400}}, "part.share is no number of seconds"),
        ({"part": []}, "part is no object"),
        ({"names": "abc"}, "names is no list"),
        ({"names": [[]]}, "names is no text"),
        ({"cause": "1"}, "cause is no number"),
        ({"told": 1}, "told is neither true nor false"),
    ],
)
def test_a_field_of_another_kind_is_refused_by_its_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Malformed) as caught:
        whole_of({**GOOD, **change})
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("value", [None, 3, "x", [], [["rank", 1]]])
def test_what_is_no_object_is_no_record(value: object) -> None:
    with pytest.raises(Malformed, match="is no object"):
        whole_of(value)


def test_a_strict_record_has_no_other_fields() -> None:
    with pytest.raises(Malformed, match="unknown fields"):
        record(Part, strict=True)({"name": "a", "more": 1})


def test_a_complete_record_lacks_no_field() -> None:
    with pytest.raises(Malformed, match="share is missing"):
        record(Part, complete=True)({"name": "a"})


def test_readers_with_bounds() -> None:
    assert listed(whole(), 2)([1, 2]) == (1, 2)
    assert mapped(cut(2), seconds())({"abc": 1}) == {"ab": 1.0}
    assert listed(paired(text(), whole()))([["a", 1]]) == (("a", 1),)
    assert fields({"a": whole(), "b": whole()}, ["b"])({"a": 1, "c": 2}) == {"a": 1}
    for reader, value in (
        (listed(whole(), 2), [1, 2, 3]),
        (mapped(text(), truth), []),
        (mapped(text(), truth, 1), {"a": True, "b": True}),
        (paired(text(), truth), ["a"]),
        (paired(text(), truth), "ab"),
        (text(2), "abc"),
        (text(fits=str.isdecimal), "a"),
        (cut(2), 3),
        (seconds(positive=True), 0),
        (seconds(5.0), 6),
        (seconds(), -1),
    ):
        with pytest.raises(Malformed):
            reader(value)


def test_a_value_that_is_nested_deeply_is_not_followed() -> None:
    deep = json.loads('{"rank":' * 900 + "1" + "}" * 900)
    with pytest.raises(Malformed, match="rank is no number"):
        record(Plain)(deep)


def test_an_annotation_without_a_reader_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="dict"):
        record(Odd)
    assert record(Odd, values=mapped(text(), whole()))({"values": {"a": 1}}).values == {"a": 1}


def test_an_agent_does_not_import_typing_for_it() -> None:
    code = f"import sys; exec(open({records.__file__!r}).read()); print('typing' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
