"""The collectives over the tensors of any framework, and over objects of Python."""
