"""``python -m horovod.bench`` measures collectives on this machine, against its limit and other libraries.

    options.py       the command line          work.py       a collective on tensors, and what must come out
    requirements.py  what has to be there      check.py      seeing that it does
    sizes.py         4, 64K, 64M               measure.py    timing a call over all ranks
    bandwidth.py     algbw, busbw              peers.py      farandole, Gloo, the machine's limit
    timing.py        seconds per call          served.py     what Gloo and MPI can do
    result.py        the figures of a line     mpi.py        MPI, as a program of its own
    table.py         ... for people            mpi_job.py    ... and the job that runs it
    plot.py          ... as a picture          rank.py       what a rank of the job does
    machine.py       where it was measured     start.py      starting the job
    progress.py      how far it is

The programs under ``benchmarks/`` measure with the same parts.
"""
