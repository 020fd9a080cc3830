"""Which hosts there are, by whose word, and which ranks go there."""
