"""Compatibility names: the parent of `horovod.runner.common.util`."""
