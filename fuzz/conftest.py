"""How long the Python fuzzers run: ``FUZZ_S`` seconds each, in rounds, and a single round below ten seconds.

A round is a number of new examples, chosen at random. A line a minute says how far a fuzzer is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SECONDS = int(os.environ.get("FUZZ_S", "3"))
ENDLESS = SECONDS >= 10
TELL_S = 60.0
GRACE_S = 300.0
"""Of the last round, which may hold the slowest examples, and of making a finding small."""

settings.register_profile(
    "fuzz",
    max_examples=500 if ENDLESS else 100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fuzz")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "once: the same inputs each time; again they would find nothing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(SECONDS + GRACE_S))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Repeat a fuzzer, with other examples each time, until its time is over."""
    began = told = time.monotonic()
    result = yield
    if pyfuncitem.get_closest_marker("once"):
        return result
    rounds = 1
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    while ENDLESS and (now := time.monotonic()) < began + SECONDS:
        if now >= told + TELL_S:
            told = now
            tell(pyfuncitem, f"{now - began:.0f} of {SECONDS} s, {rounds * settings().max_examples} inputs")
        pyfuncitem.obj(**given)
        rounds += 1
    if ENDLESS:
        tell(pyfuncitem, f"{rounds * settings().max_examples} inputs")
    return result


def tell(item: pytest.Item, text: str) -> None:
    manager = item.config.pluginmanager.getplugin("capturemanager")
    with manager.global_and_fixture_disabled():
        print(f"\nfuzz: {item.path.stem}.{item.name}: {text}", flush=True)
