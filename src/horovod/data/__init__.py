"""Data loaders, shares of the ranks in a data set, and the registry where a data service is found."""

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.sharding import IndexShard, shard_indices

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader", "IndexShard", "shard_indices"]
