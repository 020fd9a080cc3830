"""The place of this process: what its environment, its launcher and this machine say about it."""
