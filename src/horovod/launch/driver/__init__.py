"""Decisions about a job, without clocks, sockets or threads: news come in with the time, actions go out."""
