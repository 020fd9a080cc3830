"""Stores: where estimators keep training data, checkpoints and logs, so that driver and ranks reach them."""

from horovod.errors import DataStoreError
from horovod.spark.common.store.base import RemoteStore, Store
from horovod.spark.common.store.filesystem import (
    AbstractFilesystemStore,
    DBFSLocalStore,
    FilesystemStore,
    LocalStore,
)
from horovod.spark.common.store.hdfs import HDFSStore

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "DataStoreError",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "RemoteStore",
    "Store",
]
