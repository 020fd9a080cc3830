"""How long the Python fuzzers run: ``FUZZ_S`` seconds each, roughly; by default a moment."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES_PER_SECOND = 100

settings.register_profile(
    "fuzz",
    max_examples=max(20, EXAMPLES_PER_SECOND * int(os.environ.get("FUZZ_S", "1"))),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fuzz")
