"""Stores, in which estimators keep data, checkpoints and logs: one file per kind of storage."""
