"""The measures of the house stay below their ceilings, and the ceilings come down with them."""

from __future__ import annotations

import pytest
from tests.repo.house import MEASURES, Measure, begins_badly


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_the_house_has_not_grown(measure: Measure) -> None:
    value = measure.value()
    named = "" if measure.found is None else f" (python -m tests.repo.house --list {measure.name})"
    if measure.least:
        assert value >= measure.ceiling, f"{measure.what}: {value}{named}"
    else:
        assert value <= measure.ceiling, f"{measure.what}: {value}{named}"


@pytest.mark.parametrize(
    ("docstring", "badly"),
    [
        ("What a rank is told.", True),
        ("Its host.", True),
        ("\n    Who comes first.", True),
        ("Whatever comes.", False),
        ("Items of a list.", False),
        ("The rank that failed first.", False),
        ("", False),
    ],
)
def test_docstrings_that_begin_with_a_question_or_a_pronoun_are_found(docstring: str, badly: bool) -> None:
    assert begins_badly(docstring) is badly
