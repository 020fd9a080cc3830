"""Loaders over readers, for PyTorch."""
