"""Shares of the ranks in ``tf.data`` pipelines, and TensorFlow's data service across two jobs."""

from horovod.tensorflow.data.sharding import Shard, shard

__all__ = ["Shard", "shard"]
