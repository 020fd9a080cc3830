"""Who failed first, and when the others are ended."""
