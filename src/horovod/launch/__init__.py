"""Driver side: the command line, the places of ranks on hosts, their start and their supervision.

`cli` reads the options, `contracts.job` says what is to be run, `run` runs it from start to summary. The
first line of each folder says what it holds; the map in `docs/architecture.md` has them all.
"""
