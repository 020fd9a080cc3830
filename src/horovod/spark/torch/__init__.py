"""Training of PyTorch modules on Spark DataFrames."""

from horovod.spark.torch.estimator import TorchEstimator
from horovod.spark.torch.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
