"""Stores: where estimators keep training data, checkpoints and logs, so that driver and ranks reach them."""

from horovod.errors import DataStoreError
from horovod.spark.common.stores.base import Store
from horovod.spark.common.stores.databricks import DBFSLocalStore
from horovod.spark.common.stores.filesystem import AbstractFilesystemStore, FilesystemStore, LocalStore
from horovod.spark.common.stores.hdfs import HDFSStore
from horovod.spark.common.stores.remote import RemoteStore

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
