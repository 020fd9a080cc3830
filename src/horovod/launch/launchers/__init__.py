"""Ways of starting processes: the contract, and one file for each."""
