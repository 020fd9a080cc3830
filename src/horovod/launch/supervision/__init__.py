"""Words about a job: why it has failed, and which ranks a signal has reached."""
