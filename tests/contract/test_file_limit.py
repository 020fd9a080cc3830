"""A limit on the size of files (``ulimit -f``) takes away what does not fit, not all shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import json, os, resource, sys
import torch
import horovod.torch as hvd
from horovod import observe

mib = int(sys.argv[1 + int(os.environ["HOROVOD_RANK"])])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (mib << 20 if mib else hard, hard))
hvd.init()
net = torch.nn.Linear(300, 300)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters()
)
for _ in range(4):
    optimizer.zero_grad(set_to_none=False)
    net(torch.full((1, 300), 1.0 + hvd.rank())).sum().backward()
    optimizer.step()
assert torch.equal(net.weight.grad, torch.full((300, 300), 1.5))
if hvd.rank() == 0:
    print("paths", json.dumps(sorted(observe.data_paths())))
hvd.shutdown()
"""


@pytest.mark.parametrize(
    ("limits_mib", "heap"),
    [
        ((1024, 0), True),  # a heap of what is left
        ((0, 64), False),  # no heap, and memory for 59 process sets
    ],
    ids=["1 GiB", "64 MiB"],
)
def test_memory_is_shared_below_a_limit_on_files(
    tmp_path: Path, limits_mib: tuple[int, int], heap: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, str(path)]
    done = subprocess.run(
        [*command, *map(str, limits_mib)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOROVOD_SHARED_GRADIENTS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot share memory" not in done.stderr
    line = next(line for line in done.stdout.splitlines() if "paths [" in line)
    paths = json.loads(line[line.index("paths ") + 6 :])
    assert ("shm.heap" in paths) is heap, paths
    assert any(name.startswith("shm") for name in paths), paths
    assert not any(name.startswith("tcp") for name in paths), paths
