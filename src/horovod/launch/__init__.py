"""Driver side: read the command line, place ranks on hosts, start and supervise the workers.

`cli` reads the options, `job` runs one job from start to summary, `launcher` says what a way of
starting processes must offer, `supervisor` watches them, `output` forwards what they print.
"""
