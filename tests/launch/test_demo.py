"""The demo says what it lacks. That it trains, alone and within a job, the gate sees."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from horovod.demo.__main__ import main, why_slow


@pytest.mark.parametrize(
    ("absent", "packages"), [({"torch"}, "torch"), ({"torch", "sklearn"}, "torch scikit-learn")]
)
def test_what_the_demo_lacks_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, absent: set[str], packages: str
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | ModuleType | None:
        return None if name in absent else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(sys, "argv", ["demo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value).endswith(f"{sys.executable} -m pip install {packages}")


@pytest.mark.parametrize(
    ("speed_up", "cores", "load", "reason"),
    [
        (1.8, 2, 9.0, ""),
        (0.5, 2, 9.0, "other programs want the 2 cores of this machine, too: its load is 9"),
        (0.9, 1, 1.0, "2 processes share 1 core(s) here"),
        (0.9, 2, 2.0, ""),
    ],
)
def test_a_small_speed_up_is_explained_by_the_machine(
    speed_up: float, cores: int, load: float, reason: str
) -> None:
    assert why_slow(speed_up, 2, cores, load) == reason
