"""Ways of starting processes: one file for each, the fleets they share, and the choice between them."""
