"""The ground room of launching: the job, the contract with a way of starting processes, events, errors."""
