"""Options of the user: the command line, the config file, completion of the shell."""
