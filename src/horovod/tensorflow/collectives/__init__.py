"""The collectives as functions over TensorFlow's tensors, one file for each; ``mpi_ops`` lists them."""
