"""What the user asks for: the command line, the config file, completion of the shell."""
