from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(60)
def test_importing_the_frontend_without_the_native_core_only_warns() -> None:
    code = (
        "import sys; sys.modules['horovod._core'] = None; import horovod.torch as hvd; "
        "print(hvd.__all__, hasattr(hvd, 'allreduce'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] False"
    assert "native core could not be loaded" in done.stderr
