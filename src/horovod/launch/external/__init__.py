"""Jobs whose ranks another program starts (``mpirun`` and its like)."""
