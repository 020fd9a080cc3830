"""``horovod.run``: a function in every process, its arguments and results as bytes."""
