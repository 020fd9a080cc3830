"""A small network, trained with one process and with several: ``python -m horovod.demo``."""
