"""The collectives as functions over PyTorch tensors, one file for each; ``mpi_ops`` lists them."""
