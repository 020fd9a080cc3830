"""Loaders of PyTorch: batches of tensors by column, over readers of Parquet."""
