"""Sharing ``tf.data`` pipelines out among ranks."""

from horovod.tensorflow.data.sharding import Shard, shard

__all__ = ["Shard", "shard"]
