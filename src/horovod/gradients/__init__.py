"""Gradients of any framework on their way to other ranks: groups, compression, exchange."""
