"""Connections of a rank with all others: shared memory where that is possible, TCP elsewhere."""
