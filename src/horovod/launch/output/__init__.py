"""Output of the ranks, and the launcher's messages to the user."""
