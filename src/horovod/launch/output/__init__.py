"""Output of the ranks, tracebacks among it, and the launcher's messages to the user."""
