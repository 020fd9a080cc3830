"""Training of PyTorch modules on Spark DataFrames."""
