"""The page of settings says what the settings are."""

import pytest
from tests.repo.settings import PAGE, TABLES, written


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_settings_are_made_from_them(name: str) -> None:
    table = written(PAGE.read_text(encoding="utf-8"), name)
    assert table == TABLES[name](), "a setting has changed? python -m tests.repo.settings --write"
