"""Contracts of launching: jobs, ways of starting processes, events, errors, the table of launchers."""
