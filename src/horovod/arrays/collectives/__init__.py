"""The collectives as functions over arrays, one file for each; ``mpi_ops`` lists them."""
