"""Driver side: read the command line, place ranks on hosts, start and supervise the workers.

`cli` reads the options, `contracts.job` says what is to be run, `run` runs it from start to summary. The
first line of each folder says what it holds; the map in `docs/architecture.md` has them all.
"""
