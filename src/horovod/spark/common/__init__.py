"""What the parts of `horovod.spark` have in common."""
