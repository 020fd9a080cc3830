"""The host agent: the process between the launcher and the ranks of one host.

It is the parent of all ranks and adopts processes that they leave behind. It ends everything when it is told
to, or when the launcher is gone for any reason: SIGKILL, a closed connection, or silence, if it is on another
host. If the agent itself is killed, the kernel kills the ranks (parent-death signal), and its own parent,
the guard, what they have started.

Run as a program, isolated and without site packages, so it starts in about 10 ms: its files import nothing
but a little of the standard library and each other. On another host their text (`bundle`) arrives through
ssh, so nothing needs to be installed there; Python 3.7 is enough.

It speaks lines of JSON. In, on standard input: what is in `requests`. Out, on standard output: the events of
`horovod.launch.contracts.events`, each as `{"event": name, field: value, ...}`; `cannot` says why a request
is refused; the ranks are then ended. Arguments and environment are bytes to the system; here each byte is one
character (Latin-1), so that any byte survives JSON.

On the launcher's own host the ranks write to pipes of the launcher. On another host the agent reads what
they print and sends it as the event `output`, followed by the bytes; never more than the launcher's window
beyond what it has taken, so that a slow reader of the output slows the ranks and nothing else.
"""
