"""What a process of another host may put into a message where something else was expected."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

HUGE = st.sampled_from([2**31, -(2**31) - 1, 2**63, 2**64, 10**300, 10**4000, -1])
SHORT_TEXT = st.text(max_size=6) | st.sampled_from(
    ["0", "1", "-1", "\x00", "\ud800", "localhost", "127.0.0.1", "::1", "a" * 300, "..", "\x1b[2J", "é"]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), HUGE, st.floats(), SHORT_TEXT, st.just("x" * 5000)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT_TEXT, inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON can say, numbers that are none included."""

DEEP = st.integers(100, 100_000).map(lambda depth: "[" * depth + "]" * depth)
"""Text of JSON that is nested deeper than a parser may follow."""


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """``value`` (anything that JSON can say) with something else in one or two of its places."""
    for _ in range(draw(st.integers(0, 2))):
        value = _change(draw, json.loads(json.dumps(value)))
    return value


def _change(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 5)) == 0:
            del value[key]
        else:
            value[key] = _change(draw, value[key])
        return value
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        index = draw(st.integers(0, len(value) - 1))
        if draw(st.integers(0, 5)) == 0:
            del value[index]
        else:
            value[index] = _change(draw, value[index])
        return value
    return draw(ANYTHING)


def kept(name: str) -> list[bytes]:
    """The inputs of ``fuzz/corpus/python/NAME``: one a line, as Python writes bytes."""
    lines = (Path(__file__).parent / "corpus" / "python" / name).read_text().splitlines()
    return [ast.literal_eval(line) for line in lines if line and not line.startswith("#")]
