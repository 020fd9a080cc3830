"""Measurements of collectives, against the machine's limit and other libraries: ``python -m horovod.bench``.

    __main__.py      the command: measures, or starts the job
    options.py       its command line, and sizes: 4, 64K, 64M
    requirements.py  what has to be there
    operations.py    the collectives, and what other libraries have of them
    work.py          a collective on tensors, and what must come out
    measure.py       timing a call over all ranks
    peers.py         farandole, Gloo, the machine's limit; seeing that results are right
    mpi.py           MPI, as a program of its own
    mpi_job.py       ... and the job that runs it
    rank.py          what a rank of the job does
    result.py        the figures of a line, and where they were measured
    output.py        ... for people, and how far it is
    plot.py          ... as a picture

The programs under ``benchmarks/`` measure with the same parts.
"""
