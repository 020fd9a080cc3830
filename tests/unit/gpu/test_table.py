from __future__ import annotations

import json

from tests.gpu.table import FAILED, MET, MISSED, NOT_FOUND, PASSED, Row, as_json, failed, judged, rendered

ROWS = [
    Row("load staged-2", "2 ranks: streams", "25 operations", result=PASSED),
    Row("beside NCCL", "1 rank", "12.0 us more", "<= 10 us more", MISSED, 12.0),
    Row("sanitizer", "1 rank", "compute-sanitizer", result=NOT_FOUND),
]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert rendered(ROWS) == (
        "row            what              figure             goal           result\n"
        "-------------  ----------------  -----------------  -------------  ---------\n"
        "load staged-2  2 ranks: streams  25 operations                     pass\n"
        "beside NCCL    1 rank            12.0 us more       <= 10 us more  missed\n"
        "sanitizer      1 rank            compute-sanitizer                 not found\n"
    )


def test_what_a_failed_program_has_said_is_below_the_table() -> None:
    text = rendered([Row("a", "b", "c", result=FAILED, detail="x" * 9000 + "last words")])
    head, _, said = text.partition("\n\n--- a: b\n")
    assert head.endswith("fail")
    assert said.endswith("last words\n")
    assert len(said) < 5000


def test_only_what_is_wrong_fails() -> None:
    assert not failed(ROWS)
    assert failed([*ROWS, Row("a", "b", "c", result=FAILED)])


def test_goals() -> None:
    assert judged(2.0, most=2.0) == MET
    assert judged(2.1, most=2.0) == MISSED
    assert judged(85.0, least=85.0) == MET
    assert judged(84.9, least=85.0) == MISSED


def test_json_has_the_machine_and_every_row() -> None:
    read = json.loads(as_json({"devices": ["one"]}, ROWS))
    assert read["machine"] == {"devices": ["one"]}
    assert [Row(**row) for row in read["rows"]] == ROWS
