"""Both sides of another launcher find one key, or say what is missing."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from horovod.errors import ConfigError
from horovod.launch.environment import job_environment
from horovod.launch.external.key import find_key, make_key
from horovod.launch.external.program import exported_names

HEX = bytes(range(32)).hex()


def home(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"HOME": str(folder)}


def test_ranks_of_this_host_find_it_in_the_folder_of_the_job(tmp_path: Path) -> None:
    carried = make_key({"HOME": "/nowhere"}, tmp_path, elsewhere=False)
    assert find_key(carried.card, {}, "mpirun") == carried.key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError):  # somebody else may have written it
        find_key(carried.card, {}, "mpirun")


def test_hosts_that_share_the_users_secret_find_it(tmp_path: Path) -> None:
    for own in (home(tmp_path / "home"), {"HOROVOD_SECRET_KEY": HEX}):
        folder = tmp_path / secrets.token_hex(4)
        folder.mkdir()
        carried = make_key(own, folder, elsewhere=True)
        (folder / "key").unlink()  # another host has other folders
        assert find_key(carried.card, own, "mpirun") == carried.key
        assert carried.key.hex() not in carried.card
        assert HEX not in carried.card
        again = folder / "again"
        again.mkdir()
        assert make_key(own, again, elsewhere=True).key != carried.key


def test_hosts_that_share_nothing_are_told_what_to_do_and_get_no_key_file(tmp_path: Path) -> None:
    carried = make_key(home(tmp_path / "one"), tmp_path, elsewhere=True)
    (tmp_path / "key").unlink()
    other = home(tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"mpirun carries none.*copy ~/\.config/farandole/key.*--launcher ssh"
    ):
        find_key(carried.card, other, "mpirun")
    assert list(Path(other["HOME"]).iterdir()) == []
    make_key(other, tmp_path, elsewhere=True)  # now it has one of its own
    with pytest.raises(ConfigError, match="does not have the key of this job"):
        find_key(carried.card, other, "mpirun")


def test_a_key_in_the_environment_is_not_handed_on() -> None:
    inherited = {"HOROVOD_SECRET_KEY": HEX, "PATH": "/bin"}
    made = job_environment(inherited, {}, store=[("h", 1)], secret_key=None, job_id="j")
    assert "HOROVOD_SECRET_KEY" not in made
    assert exported_names(inherited) == ("PATH",)
