"""Parquet data in training: every rank reads its own rows, in batches of NumPy arrays.

Needs pyarrow, and fsspec for filesystems that pyarrow does not know itself; no framework, and no Spark.
"""

from horovod.requirements import require

require("horovod.data.parquet", "pyarrow")

from horovod.data.parquet.reader import ParquetReader

__all__ = ["ParquetReader"]
