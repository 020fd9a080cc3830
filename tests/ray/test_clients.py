"""Programs that place ranks in actors of their own, and have them meet here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from tests.ray.helpers import await_end, release
from tests.ray.session import in_ray

from horovod.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.gloo_run import RendezvousServer


class Estimator:
    """An actor of such a program. It knows nothing of Ray executors."""

    def set_env(self, variables: dict[str, str]) -> None:
        os.environ.update(variables)

    def fit(self, epochs: int) -> tuple[int, int, float, list[float], int]:
        import torch

        import horovod.torch as hvd

        hvd.init()
        torch.manual_seed(hvd.rank())  # weights are equal after the broadcast
        inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(hvd.rank()))
        labels = inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        model = torch.nn.Linear(4, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters()
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
        weights = [round(each, 6) for each in model.weight.flatten().tolist()]
        hvd.shutdown()
        return hvd_rank(), int(os.environ["HOROVOD_SIZE"]), loss.item(), weights, os.getpid()


def hvd_rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def variables_of(slot: Any, port: int) -> dict[str, str]:
    """As the program itself makes them, without help of ours."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": ray.util.get_node_ip_address(),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


@in_ray
def test_a_program_that_serves_and_sets_the_variables_itself() -> None:
    release()
    plan = get_host_assignments(parse_hosts(f"{ray.util.get_node_ip_address()}:2"), 2)
    server = RendezvousServer(True)
    port = server.start()
    server.init(plan)
    actors = [ray.remote(Estimator).options(num_cpus=1).remote() for _ in plan]
    try:
        ray.get(
            [actor.set_env.remote(variables_of(slot, port)) for actor, slot in zip(actors, plan, strict=True)]
        )
        found = ray.get([actor.fit.remote(60) for actor in actors], timeout=300)
    finally:
        for actor in actors:
            ray.kill(actor)
        server.stop()
    assert [each[:2] for each in found] == [(0, 2), (1, 2)]
    assert found[0][3] == found[1][3] == pytest.approx([1, 2, 3, 4], abs=0.1)
    await_end([each[4] for each in found])


def test_names_that_libraries_import() -> None:
    """As Ludwig, Ray Lightning and Ray Train do."""
    from horovod.ray import adapter, elastic, elastic_v2, ray_logger, runner, strategy, utils
    from horovod.runner.common.util.secret import make_secret_key
    from horovod.runner.common.util.timeout import Timeout

    found = {
        adapter: "Adapter BaseParams",
        elastic: "ElasticRayExecutor RayHostDiscovery TestDiscovery",
        elastic_v2: "ElasticParams ElasticAdapter RayHostDiscovery TestDiscovery",
        ray_logger: "configure log",
        runner: "BaseHorovodWorker Coordinator MiniSettings RayExecutor StaticAdapter StaticParams",
        strategy: "BaseStrategy ColocatedStrategy PGStrategy create_placement_group",
        utils: "detect_nics map_blocking nics_to_env_var",
    }
    for module, names in found.items():
        assert set(names.split()) <= set(module.__all__), module
    assert len(make_secret_key()) == 32
    assert Timeout(5, "{activity}").remaining() > 0
    assert all((BaseHorovodWorker, ElasticRayExecutor, RayExecutor))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "key")
        made = RayExecutor.create_settings(timeout_s=30, ssh_identity_file=str(file), ssh_str="text")
        assert (made.timeout_s, file.read_text(), file.stat().st_mode & 0o777) == (30, "text", 0o600)
