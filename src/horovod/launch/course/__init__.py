"""Course of a job: the loop that hears what happens, and carries out what the driver decides."""
