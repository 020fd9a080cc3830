"""The launcher's side of agents: messages to them, and connections to other hosts."""
