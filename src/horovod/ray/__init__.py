"""Training inside a Ray cluster: actors are the ranks of one world."""

from horovod.requirements import require

require("horovod.ray", "ray")

from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import BaseHorovodWorker, RayExecutor

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
