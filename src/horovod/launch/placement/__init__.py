"""The hosts of a job: who names them, and which ranks go there."""
