"""Course of a job: the loop that carries out what the driver decides, and words about how it ended."""
