"""Driver side: read the command line, place ranks on hosts, start and supervise the workers.

`cli` reads the options, `job` says what is to be run, `run` runs it from start to summary. The rooms:

    options         the command line, the config file, completion of the shell
    placement       hosts, by whose word, and which ranks go there
    launchers       ways of starting processes: the contract, and a file for each
    agent           the parent of the ranks on each host, a program of its own
    agent_client    what is said to agents, and the way to other hosts
    external        ranks that a program on PATH starts, such as mpirun
    supervision     who failed first, and when the others are ended
    output          what ranks print, and what the user is told
    calls           a function in every process: `horovod.run`
"""
