"""Hosts of a job and the ranks on each: host lists, host files, allocations of batch systems, addresses."""
