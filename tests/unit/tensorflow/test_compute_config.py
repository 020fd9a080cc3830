"""The file by which a training job learns of the job that prepares its data."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from horovod.errors import ConfigError
from horovod.tensorflow.data.compute_config import TfDataServiceConfig

KEY = bytes(range(32))
CONFIG = TfDataServiceConfig(2, 3, "compute", {"lo": [("127.0.0.1", 1), ("::1", 1)], "e": []}, KEY, 90)


def test_round_trip(tmp_path: Path) -> None:
    as_json = json.dumps(CONFIG.to_dict())
    assert KEY.hex() in as_json
    assert TfDataServiceConfig.from_dict(json.loads(as_json)) == CONFIG
    CONFIG.write(tmp_path / "config")
    assert TfDataServiceConfig.read(str(tmp_path / "config")) == CONFIG


def test_it_is_frozen_and_does_not_show_its_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.timeout = 1  # type: ignore[misc]
    assert repr(KEY) not in repr(CONFIG)


def test_the_file_is_for_its_owner_alone_and_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("of an earlier run")
    path.chmod(0o644)
    before = path.stat().st_ino
    CONFIG.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["config"]


def test_a_failing_write_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    with pytest.raises(OSError):
        CONFIG.write(folder)
    assert os.listdir(tmp_path) == ["config"]


def test_waiting_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(path)
    with pytest.raises(TimeoutError, match=r"did not write its configuration file .*config within 0\.05 s"):
        TfDataServiceConfig.read(path, wait_for_file_creation=True, timeout_s=0.05)
    found: list[TfDataServiceConfig] = []
    reader = threading.Thread(target=lambda: found.append(TfDataServiceConfig.read(path, True, 20)))
    reader.start()
    CONFIG.write(path)
    reader.join(20)
    assert found == [CONFIG]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config"
    CONFIG.write(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        TfDataServiceConfig.read(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="must be a file"):
        TfDataServiceConfig.read(tmp_path / "pipe")


GOOD = CONFIG.to_dict()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "[" * 100_000,
        *(json.dumps({name: value for name, value in GOOD.items() if name != left}) for left in GOOD),
        json.dumps({**GOOD, "key": "xyz"}),
        json.dumps({**GOOD, "addresses": {"lo": [["127.0.0.1"]]}}),
        json.dumps({**GOOD, "addresses": 1}),
        json.dumps({**GOOD, "dispatchers": 0}),
        json.dumps({**GOOD, "timeout": "soon"}),
        json.dumps({**GOOD, "dispatcher_side": "left"}),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"config is no configuration file of a compute job: .*"):
        TfDataServiceConfig.read(path)


@pytest.mark.parametrize(
    "wrong", [{"dispatcher_side": "both"}, {"dispatchers": 0}, {"workers_per_dispatcher": -1}, {"timeout": 0}]
)
def test_fields_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        dataclasses.replace(CONFIG, **wrong)
