"""The version of the interface, which scripts compare with; that of the distribution is in its metadata."""

__all__ = ["__version__"]

__version__ = "0.28.1"
