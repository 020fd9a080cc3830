"""Programs that start the ranks, such as ``mpirun``: their process, the job's key, messages of the ranks."""
