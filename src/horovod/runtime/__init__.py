"""The engine of this process: from its start to its end, its handles and its process sets."""
