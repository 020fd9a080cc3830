"""Code shared by the parts of `horovod.spark`."""
