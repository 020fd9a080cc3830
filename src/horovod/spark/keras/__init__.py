"""Training of Keras models on Spark DataFrames."""

from horovod.spark.keras.estimator import KerasEstimator
from horovod.spark.keras.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
