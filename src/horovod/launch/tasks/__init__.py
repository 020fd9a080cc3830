"""Ranks in tasks of another system, such as Spark: a host agent in each, reached through the job's store."""
