"""Constants that the launcher and an agent have agreed on."""

from __future__ import annotations

MARK = b"\nfarandole agent 1\n"  # what comes before it was printed by the shell of the host
BEAT_S = 1.0
GRACE_S = 5.0  # between the first signal and SIGKILL
GIVE_UP_S = 5.0  # after SIGKILL: a process stuck in the kernel cannot be ended by anybody
LINGER_S = 0.5  # how long processes that ranks left behind may take to end by themselves
PLAN_S = 60.0  # how long the launcher may need until the plan comes: it waits for the slowest host

STARTER = b"HOROVOD_STARTER"  # how a rank finds the pipe for its words: see horovod.bootstrap.place.starter

MOST_LINE_BYTES = 16 << 20  # of a request: a plan names every rank of the host, and its environment
MOST_RANKS = 1 << 16  # of one host
MOST_WINDOW_BYTES = 1 << 30
MOST_SILENCE_S = 1e9
MOST_KEPT_BYTES = 16 << 20  # of output, while no launcher is there
MOST_WORDS = 1000  # that one rank may say about itself
MOST_STOPS = 100  # of one rank that are told
