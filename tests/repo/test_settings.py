"""The page of settings says what the settings are."""

from tests.repo.settings import BEGIN, END, PAGE, table


def test_the_table_of_settings_is_made_from_them() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "a setting has changed? python -m tests.repo.settings --write"
