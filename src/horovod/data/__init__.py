"""Data loaders, one that loads ahead in a thread, and sharing data out among ranks."""

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.sharding import IndexShard, shard_indices

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader", "IndexShard", "shard_indices"]
