"""Jobs whose ranks another program starts (``mpirun``, ``srun``, ``jsrun``)."""
