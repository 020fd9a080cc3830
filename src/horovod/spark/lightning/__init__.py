"""Training of LightningModules on Spark DataFrames, and Lightning's ``Trainer`` over ``horovod.torch``."""
