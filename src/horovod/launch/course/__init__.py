"""The course of a job: one loop carries out what its driver decides, and hears what happens."""
