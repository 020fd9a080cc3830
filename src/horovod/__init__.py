"""Data-parallel training for today's frameworks, under the interface of Horovod.

Import a frontend: ``import horovod.torch as hvd``. This package imports nothing itself, so that a launcher
or a script that only asks for the version does not pay for a framework.
"""

__all__ = ["__version__"]

# The interface version that scripts compare with; the version of the distribution is in its metadata.
__version__ = "0.28.1"
