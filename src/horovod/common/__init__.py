"""Names that scripts import from ``horovod.common``; the code behind them lives elsewhere in the package."""
