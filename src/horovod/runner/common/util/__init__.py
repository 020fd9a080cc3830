"""Compatibility names: hosts and slots, secret keys, time limits, rank and size from the environment."""
