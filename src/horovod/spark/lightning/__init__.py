"""Training of LightningModules on Spark DataFrames, and Lightning's ``Trainer`` over ``horovod.torch``."""

from horovod.spark.lightning.estimator import TorchEstimator, TorchModel
from horovod.spark.lightning.modules import installed
from horovod.spark.lightning.strategy import strategy_class

__all__ = ["HorovodStrategy", "LightningEstimator", "LightningModel", "TorchEstimator", "TorchModel"]

LightningEstimator = TorchEstimator
LightningModel = TorchModel
HorovodStrategy = strategy_class(installed())
