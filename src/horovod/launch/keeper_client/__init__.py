"""The launching side of keepers: what is said to them, and the way to other hosts."""
