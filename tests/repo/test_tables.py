"""Tables of pages say what the sources say."""

from tests.repo.map import MAP, core_folders, core_lines
from tests.repo.prices import PRICES_TABLE
from tests.repo.settings import TABLES
from tests.repo.tables import stale


def test_tables_are_made_from_the_sources() -> None:
    assert list(stale(MAP, PRICES_TABLE, *TABLES)) == []


def test_every_folder_of_core_has_a_line() -> None:
    assert sorted(core_lines()) == core_folders()
