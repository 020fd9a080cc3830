from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from horovod.bootstrap.trust.secret import _FORMER_FOLDER as FORMER
from horovod.bootstrap.trust.secret import job_key, port_of
from horovod.errors import ConfigError

HEX = bytes(range(32)).hex()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def key_file(home: dict[str, str]) -> Path:
    return Path(home["HOME"]) / ".config" / "farandole" / "key"


def test_key_of_the_environment_wins_and_makes_no_file(home: dict[str, str]) -> None:
    assert job_key({**home, "HOROVOD_SECRET_KEY": HEX}, "job") == bytes(range(32))
    assert not key_file(home).exists()


def test_without_key_and_job_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="Set HOROVOD_SECRET_KEY"):
        job_key({}, "")


@pytest.mark.parametrize("text", ["zz is no key", HEX[:-1], "0011"])
def test_bad_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="HOROVOD_SECRET_KEY") as caught:
        job_key({"HOROVOD_SECRET_KEY": text}, "job")
    assert text not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_key_file_is_made_private_and_jobs_differ(home: dict[str, str]) -> None:
    first = job_key(home, "job 1")
    assert len(first) == 32
    assert first == job_key(home, "job 1") != job_key(home, "job 2")
    assert stat.S_IMODE(key_file(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file(home).parent.stat().st_mode) == 0o700
    assert os.listdir(key_file(home).parent) == ["key"]


def test_configuration_folder_of_the_user_is_respected(tmp_path: Path) -> None:
    job_key({"XDG_CONFIG_HOME": str(tmp_path)}, "job")
    assert (tmp_path / "farandole" / "key").exists()


def test_key_of_the_former_name_is_taken_over_once_and_that_is_said(
    home: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    own = job_key(home, "job")
    former = key_file(home).parent.with_name(FORMER) / "key"
    former.parent.mkdir()
    key_file(home).rename(former)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: job_key(home, "job"), range(64))) == {own}
    assert [record.getMessage() for record in caplog.records] == [
        f"The key {former} is now {key_file(home)}. The former file is not read any more: delete it."
    ]
    assert stat.S_IMODE(key_file(home).stat().st_mode) == 0o600
    former.unlink()
    assert job_key(home, "job") == own


def test_key_of_the_former_name_that_others_can_read_is_refused(home: dict[str, str]) -> None:
    job_key(home, "job")
    former = key_file(home).parent.with_name(FORMER) / "key"
    former.parent.mkdir()
    key_file(home).rename(former)
    former.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {former}"):
        job_key(home, "job")
    elsewhere = former.rename(Path(home["HOME"]) / "elsewhere")
    former.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=f"key file {former} cannot be used"):
        job_key(home, "job")
    assert not key_file(home).exists()


def test_ranks_that_start_at_once_agree(home: dict[str, str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: job_key(home, "job"), range(64)))
    assert len(keys) == 1


def test_file_that_others_can_read_is_refused(home: dict[str, str]) -> None:
    job_key(home, "job")
    key_file(home).chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        job_key(home, "job")


def test_damaged_file_and_link_are_refused(home: dict[str, str]) -> None:
    job_key(home, "job")
    key_file(home).write_bytes(b"short")
    with pytest.raises(ConfigError, match="damaged"):
        job_key(home, "job")
    elsewhere = Path(home["HOME"]) / "elsewhere"
    key_file(home).rename(elsewhere)
    key_file(home).symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="cannot be used"):
        job_key(home, "job")


def test_pipe_in_place_of_the_file_is_refused_and_keeps_nobody_waiting(home: dict[str, str]) -> None:
    key_file(home).parent.mkdir(parents=True)
    os.mkfifo(key_file(home), 0o600)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(ConfigError) as caught:
            job_key(home, "job")
        said.append(str(caught.value))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(10)
    assert said
    assert "must be a file of yours" in said[0]


def test_unusable_home_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Set HOROVOD_SECRET_KEY"):
        job_key({"HOME": str(tmp_path / "file")}, "job")


def test_the_port_of_a_job_is_told_by_its_key_alone() -> None:
    """Another user knows every variable of a job, and must not be able to take its port first."""
    ports = {port_of(bytes([number]) * 32) for number in range(200)}
    assert len(ports) > 190
    assert all(12000 <= port < 32000 for port in ports)
    assert port_of(bytes(32)) == port_of(bytes(32))
