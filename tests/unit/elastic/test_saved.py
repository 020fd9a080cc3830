"""The state of a driver, in a file."""

from __future__ import annotations

import base64
import errno
import json
import os
import pickle
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.elastic.play import Play

from horovod.errors import ConfigError, LaunchError
from horovod.launch.elastic.rules import Phase
from horovod.launch.elastic.saved import Clock, Saved, Saver, load, packed
from horovod.version import __version__

STATE = Saved(
    words=("-np", "2", "python", "train.py"),
    directory="folder",
    environ={"HOME": "home", "ODD": "\udcff"},
    key="00ff" * 8,
    job="job",
    store=(("127.0.0.1", 4000), ("::1", 4000)),
    door="secret",
    workers={3: ("a", 0), 5: ("b", 1)},
    agents=("a", "b"),
    news=((100, 1), (101, 3)),
    driver="",
    ticks=50.0,
    at=1000.0,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.state"


def test_what_is_saved_is_loaded(path: Path) -> None:
    play = Play(2)
    play.begin(a=2)
    Saver(path, pytest.fail).save(replace(STATE, driver=packed(play.driver)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    read = load(path)
    assert (*read.words,) == STATE.words
    assert read.environ == STATE.environ
    assert read.workers == STATE.workers
    assert (*read.store,) == STATE.store
    driver = read.state_machine()
    assert (driver.phase, driver.world, driver.round) == (Phase.TRAINING, (0, 1), 1)


def test_it_is_written_when_something_has_changed_and_removed_at_the_end(path: Path) -> None:
    saver = Saver(path, pytest.fail)
    saver.save(STATE)
    first = path.stat().st_ino
    saver.save(replace(STATE, at=2000.0, ticks=1050.0))
    assert path.stat().st_ino == first
    saver.save(replace(STATE, agents=("a",)))
    assert load(path).agents == ("a",)
    saver.remove()
    saver.remove()
    with pytest.raises(ConfigError, match=r"no such file\. The job is over, or was started without --state"):
        load(path)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot be kept in .*missing/job.state: No such file"):
        Saver(tmp_path / "missing" / "job.state", pytest.fail).save(STATE)


def test_a_place_that_is_full_later_leaves_no_state_of_the_past(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    saver = Saver(path, told.append)
    saver.save(STATE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        for job in "ab":
            saver.save(replace(STATE, job=job))
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert "the job does not outlive this process" in told[0]
    assert list(path.parent.iterdir()) == []
    saver.save(replace(STATE, job="b"))
    assert load(path).job == "b"


def _no_sync_of_folders(patched: pytest.MonkeyPatch, number: int) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    patched.setattr("os.fsync", fsync)


def test_a_job_that_does_not_start_leaves_no_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_sync_of_folders(monkeypatch, errno.EIO)
    with pytest.raises(LaunchError, match=r"cannot be kept in .*job.state: Input/output error"):
        Saver(path, pytest.fail).save(STATE)
    assert list(path.parent.iterdir()) == []


def test_a_job_that_goes_on_keeps_its_file_for_the_next_try(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Saver(path, pytest.fail).save(STATE)
    _no_sync_of_folders(monkeypatch, errno.EIO)
    with pytest.raises(LaunchError, match="Input/output error"):
        Saver(path, pytest.fail, goes_on=True).save(STATE)
    assert load(path).job == "job"


def test_a_name_that_does_not_reach_the_disk_later_is_taken_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    saver = Saver(path, told.append)
    saver.save(STATE)
    with monkeypatch.context() as patched:
        _no_sync_of_folders(patched, errno.EIO)
        saver.save(replace(STATE, agents=("a",)))
    assert len(told) == 1
    assert list(path.parent.iterdir()) == []
    saver.save(replace(STATE, agents=("a",)))
    assert load(path).agents == ("a",)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_does_not_sync_folders(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_sync_of_folders(monkeypatch, number)
    Saver(path, pytest.fail).save(STATE)
    assert load(path).job == "job"


def test_a_folder_that_may_be_written_and_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with mode 0300; root may read it all the same."""
    open_ = os.open

    def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_(name, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr("os.open", refuse)
        saver = Saver(path, pytest.fail)
        saver.save(STATE)
        saver.save(replace(STATE, agents=("a",)))
    assert load(path).agents == ("a",)
    saver.remove()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_refused(path: Path, mode: int) -> None:
    Saver(path, pytest.fail).save(STATE)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may have written to this file"):
        load(path)


def _changed(**changes: Any) -> str:
    known = {"format": 1, "version": "?", **STATE.__dict__, **changes}
    return json.dumps(known)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", "{}", "3", "[" * 100_000),
        *(_changed(), _changed(workers=3), _changed(store=[3])),
    ],
)
def test_a_file_that_is_none(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="--resume"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"words": "train"}, "words is no list"),
        ({"environ": {"A": 1}}, "environ is no text"),
        ({"key": "00"}, "key is no key"),
        ({"store": []}, "store is no list"),
        ({"store": [["a", 1 << 16]]}, "store is no number"),
        ({"store": [["a"]]}, "store is no list"),
        ({"workers": {"x": ["a", 1]}}, "invalid literal"),
        ({"agents": [3]}, "agents is no text"),
        ({"ticks": float("nan")}, "ticks is no number of seconds"),
        ({"at": True}, "at is no number of seconds"),
        ({"driver": None}, "driver is no text"),
    ],
)
def test_a_state_with_a_part_of_another_kind_is_none(path: Path, changes: dict[str, Any], words: str) -> None:
    path.write_text(_changed(version=__version__))
    path.chmod(0o600)
    assert load(path).job == "job"
    path.write_text(_changed(version=__version__, **changes))
    with pytest.raises(ConfigError, match=f"it is no state of an elastic job: {words}"):
        load(path)


def test_what_is_no_file(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="this is no file"):
        load(path)
    with pytest.raises(ConfigError, match="--resume"):
        load(path.parent)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


class _EvilGet:
    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (Play, "begin")


@pytest.mark.parametrize("what", [_Evil(), _EvilGet(), 3, Play, os.system])
def test_a_pickle_that_names_anything_else(
    what: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = base64.b85encode(pickle.dumps(what)).decode()
    with pytest.raises(ConfigError, match="makes no sense"):
        replace(STATE, driver=driver).state_machine()
    assert not list(tmp_path.iterdir())


def test_the_clock_goes_on_across_a_restart_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1007.0)
    monkeypatch.setattr("time.monotonic", lambda: 3.0)
    clock = Clock(STATE)
    assert clock.now() == 57.0
    monkeypatch.setattr("time.monotonic", lambda: 5.0)
    assert clock.now() == 59.0
    assert Clock(None).now() == 5.0


def test_a_file_that_is_there_already_is_not_overwritten(path: Path) -> None:
    Saver(path, pytest.fail).save(STATE)
    with pytest.raises(
        ConfigError, match=r"already\. If a job is in it, go on with that: horovodrun --resume"
    ):
        Saver(path, pytest.fail)
    Saver(path, pytest.fail, goes_on=True).save(replace(STATE, job="other"))
    path.write_bytes(b"")  # as mktemp makes it
    Saver(path, pytest.fail)


def test_it_outlives_a_power_failure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is on the disk before it has its name, and the name before anything is done."""
    done: list[str] = []
    sync, replace_ = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        done.append("name")
        replace_(source, target)

    saver = Saver(path, pytest.fail)
    saver.save(STATE)
    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("os.replace", rename)
    saver.save(replace(STATE, agents=("a",)))
    assert done == ["file", "name", "folder"]


def test_of_two_jobs_that_begin_together_one_gets_the_file(path: Path) -> None:
    first, second = (Saver(path, pytest.fail) for _ in range(2))
    first.save(STATE)
    with pytest.raises(ConfigError, match="this file is there already"):
        second.save(replace(STATE, job="other"))
    assert load(path).job == "job"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    first.save(replace(STATE, agents=("a",)))
    assert load(path).agents == ("a",)


def test_a_file_system_without_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.link", link)
    Saver(path, pytest.fail).save(STATE)
    assert load(path).job == "job"


def test_the_state_of_another_job_is_not_removed(path: Path) -> None:
    saver = Saver(path, pytest.fail)
    saver.save(STATE)
    path.unlink()
    Saver(path, pytest.fail).save(replace(STATE, job="other"))
    saver.remove()
    assert load(path).job == "other"


def test_whose_workers_have_come_is_known_to_the_next_driver() -> None:
    play = Play(2)
    play.begin(a=2)
    play.restart()
    for number in (0, 1):
        play.exit(number)
    assert play.over is not None
    assert not play.over.error
    assert not any("never called" in log.text for log in play.logs)


@pytest.mark.parametrize("done", range(5))
def test_workers_that_were_not_started_are_started_by_the_next_driver(done: int) -> None:
    play = Play(3)
    play.dies = lambda count: min(done, count)
    play.discover(a=2, b=1)
    assert sorted(play.workers) == [0, 1, 2]
    play.arrive(0, 1, 2)
    assert (play.size(), play.world) == (3, [0, 1, 2])
    assert play.over is None
