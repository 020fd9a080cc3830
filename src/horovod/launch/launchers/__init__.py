"""Ways of starting processes: one file for each."""
