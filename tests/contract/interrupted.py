"""Ctrl-C at every place of an operation: whatever the engine still works on stays alive, and nothing that the
program makes afterwards is written to.

Rank 0 is interrupted: by a tracing hook that raises before the n-th bytecode instruction in ``horovod``, for
every n up to the end of the call, and by a signal while it waits in the engine. Rank 1 comes late: when rank
0 has looked.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from tests.contract.world import Cases

import horovod
import horovod.torch as hvd
from horovod import _core
from horovod.runtime import lifecycle
from horovod.torch.autograd import collectives

CASES = Cases()
ELEMENTS = 5000  # enough for malloc to give the same memory to the next tensor of this size
LATE = 10**9  # instructions: none is the last
OURS = str(Path(horovod.__file__).parent)


def tensor() -> torch.Tensor:
    return torch.full((ELEMENTS,), 1.0)


def line() -> Iterator[str]:
    """What rank 0 tells rank 1, past the engine."""
    with _pipe().open(encoding="ascii") as pipe:
        yield from (text.strip() for text in pipe)


def _pipe() -> Path:
    path = Path(os.environ["EXCHANGE_FOLDER"], "pipe")
    try:
        os.mkfifo(path)
    except FileExistsError:
        pass
    return path


@dataclass
class Watch:
    """What the engine has been told on this rank."""

    described: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    """Tensors whose address Python has taken."""
    submitted: list[str] = field(default_factory=list)
    """Names that the engine has accepted."""
    waits: threading.Event = field(default_factory=threading.Event)
    """A call is about to wait."""
    struck: bool = False
    """It was interrupted there."""
    instructions: int = 0
    """So many of ``horovod`` have been run."""
    first: int | None = None
    """So many had been run when the first address was taken."""

    def describe(self, real: Callable[..., Any], tensor: torch.Tensor, *out: int | None) -> Any:
        described = real(tensor, *out)
        if described is None:
            return None
        self.described.append(weakref.ref(tensor))
        if self.first is None:
            self.first = self.instructions
        return described

    def submit(self, real: Callable[..., int], *arguments: Any) -> int:
        name, mode = arguments[1], arguments[8]
        if mode != _core.BLOCKING:
            handle = real(*arguments)
            self.submitted.append(name)
            return handle
        self.waits.set()
        try:
            return real(*arguments)
        finally:
            self.submitted.append(name)

    def wait(self, real: Callable[..., Any], *arguments: Any) -> Any:
        self.waits.set()
        return real(*arguments)


@contextmanager
def watching() -> Iterator[Watch]:
    """These wrappers are not traced: nothing comes between the engine's answer and the note of it."""
    watch = Watch()
    engine = lifecycle.current().engine
    ways = {
        "submit": functools.partial(watch.submit, engine.submit),
        "wait": functools.partial(watch.wait, engine.wait),
    }
    frontend = collectives.frontend
    describe = functools.partial(watch.describe, frontend.describe)
    peek = functools.partial(watch.describe, frontend.peek)
    with ExitStack() as stack:
        for name, way in ways.items():
            stack.enter_context(mock.patch.object(engine, name, way))
        stack.enter_context(mock.patch.object(collectives, "_describe", describe))
        stack.enter_context(mock.patch.object(frontend, "peek", peek))  # of the optimizer's exchange
        yield watch


class Interruption:
    """Raises before the n-th instruction of ``horovod`` that this thread comes to."""

    def __init__(self, n: int, watch: Watch) -> None:
        self._n = n
        self._watch = watch

    def __enter__(self) -> Interruption:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            if self._watch.instructions == self._n:
                sys.settrace(None)
                raise KeyboardInterrupt
            self._watch.instructions += 1
        return self._step


def strike(watch: Watch, over: threading.Event) -> None:
    """Ctrl-C once the main thread is inside the engine: until then it does not give the interpreter away."""
    watch.waits.wait()
    if not over.is_set():
        watch.struck = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def attempt(call: Callable[[], Any], n: int) -> tuple[bool, Watch]:
    """Run ``call`` and interrupt it before its n-th instruction, at the latest when it waits. False: it has
    come to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    over = threading.Event()
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    with watching() as watch:
        striker = threading.Thread(target=strike, args=(watch, over))
        striker.start()
        interrupted = False
        try:
            with Interruption(n, watch):
                call()
        except KeyboardInterrupt:
            interrupted = True
        over.set()
        watch.waits.set()
        striker.join()
    sys.setswitchinterval(before)
    return interrupted, watch


def interrupt_everywhere(call: Callable[[], Any], peer: Callable[[list[str]], Any]) -> None:
    """Interrupt rank 0 everywhere from where the first address is taken.

    Args:
        call: what rank 0 is interrupted in; keeps nothing.
        peer: what rank 1 does when these names have been submitted on rank 0.
    """
    if hvd.rank() == 1:
        for text in line():
            peer(text.split())
            hvd.barrier()
        return
    held = 0
    with _pipe().open("w", encoding="ascii", buffering=1) as pipe:
        n = LATE
        while True:
            interrupted, watch = attempt(call, n)
            if watch.submitted:
                held += interrupted
                later = [torch.full((ELEMENTS,), -7.0) for _ in range(12)]
                dead = [reference for reference in watch.described if reference() is None]
                assert not (interrupted and dead), f"interrupted before instruction {n}: {len(dead)} are gone"
                pipe.write(" ".join(watch.submitted) + "\n")
                hvd.barrier()
                assert all(bool((each == -7.0).all()) for each in later), f"written to, instruction {n}"
            if n == LATE:  # the first round: without a hook's exception
                assert watch.first is not None
                n = watch.first - 1
            elif not interrupted or watch.struck:
                break
            n += 1
    assert held > 1, "never interrupted with something under way"


Call = Callable[[str], Any]


def both(call: Call, finish: Callable[[Any], Any]) -> Callable[[], None]:
    """A case: rank 0 is interrupted in ``call``; rank 1 comes late and has ``finish`` wait for the result."""
    name = f"interrupted.{len(CASES.table)}"
    return lambda: interrupt_everywhere(lambda: call(name), lambda _: finish(call(name)))


BLOCKING: dict[str, Call] = {
    "allreduce": lambda name: hvd.allreduce(tensor(), name=name),
    "allreduce_": lambda name: hvd.allreduce_(tensor(), name=name),
    "allreduce-scaled": lambda name: hvd.allreduce(tensor(), name=name, prescale_factor=0.5),
    "allreduce-half": lambda name: hvd.allreduce(tensor(), name=name, compression=hvd.Compression.fp16),
    "allreduce-differentiable": lambda name: hvd.allreduce(tensor().requires_grad_(), name=name),
    "grouped_allreduce": lambda name: hvd.grouped_allreduce([tensor(), tensor()], name=name),
    "grouped_allreduce_": lambda name: hvd.grouped_allreduce_([tensor(), tensor()], name=name),
    "allgather": lambda name: hvd.allgather(tensor(), name=name),
    "reduce": lambda name: hvd.reduce(tensor(), 1, name=name),
    "reduce_": lambda name: hvd.reduce_(tensor(), 1, name=name),
    "grouped_reduce_": lambda name: hvd.grouped_reduce_([tensor(), tensor()], 1, name=name),
    "broadcast": lambda name: hvd.broadcast(tensor(), 1, name=name),
    "broadcast_": lambda name: hvd.broadcast_(tensor(), 1, name=name),
    "alltoall": lambda name: hvd.alltoall(tensor(), name=name),
    "reducescatter": lambda name: hvd.reducescatter(tensor(), name=name),
    "grouped_reducescatter": lambda name: hvd.grouped_reducescatter([tensor(), tensor()], name=name),
}
ASYNCHRONOUS: dict[str, Call] = {
    "allreduce_async": lambda name: hvd.allreduce_async(tensor(), name=name),
    "allreduce_async_": lambda name: hvd.allreduce_async_(tensor(), name=name),
    "grouped_allreduce_async": lambda name: hvd.grouped_allreduce_async([tensor(), tensor()], name=name),
    "allgather_async": lambda name: hvd.allgather_async(tensor(), name=name),
    "grouped_allgather_async": lambda name: hvd.grouped_allgather_async([tensor(), tensor()], name=name),
    "broadcast_async": lambda name: hvd.broadcast_async(tensor(), 1, name=name),
    "alltoall_async": lambda name: hvd.alltoall_async(tensor(), [0, ELEMENTS], name=name),
    "reducescatter_async": lambda name: hvd.reducescatter_async(tensor(), name=name),
    "grouped_reducescatter_async": lambda name: hvd.grouped_reducescatter_async([tensor()] * 2, name=name),
}
for kind, call in BLOCKING.items():
    CASES.add_as(kind, both(call, lambda result: result))
for kind, call in ASYNCHRONOUS.items():
    CASES.add_as(kind, both(call, hvd.synchronize))


@CASES.add
def gradients_that_are_handed_over() -> None:
    """The exchange of an optimizer, which submits by itself."""

    def wrapped() -> tuple[Any, Any]:
        weight = torch.nn.Parameter(tensor())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1), named_parameters=[("w", weight)]
        )
        weight.grad = tensor()
        return optimizer, weight

    # PyTorch imports things for its first optimizer, which asks our finder of modules. That comes once.
    wrapped()[0].step()

    def call() -> None:
        optimizer, weight = wrapped()
        optimizer._exchange.ready(0, weight.grad)

    def peer(names: list[str]) -> None:
        for name in names:
            value = tensor()
            hvd.synchronize(collectives.allreduce(value, value, name, hvd.Average))

    interrupt_everywhere(call, peer)


@CASES.add
def the_world_ends_while_an_interrupted_operation_is_under_way() -> None:
    if hvd.rank() == 0:
        interrupted, watch = attempt(lambda: hvd.allreduce_(tensor(), name="interrupted.end"), LATE)
        assert interrupted
        assert watch.struck
        hvd.shutdown()
        assert all(reference() is None for reference in watch.described), "kept after the end"
    else:
        try:
            while True:  # until rank 0 has ended the world
                hvd.allreduce_async(torch.ones(1), name=None)
        except hvd.HorovodInternalError:
            pass
        hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@CASES.add
def what_was_interrupted_is_let_go_when_it_is_done() -> None:
    if hvd.rank() == 0:
        with _pipe().open("w", encoding="ascii", buffering=1) as pipe:
            _, watch = attempt(lambda: hvd.allreduce_(tensor(), name="interrupted.gone"), LATE)
            assert watch.struck
            assert all(reference() is not None for reference in watch.described)
            pipe.write("come\n")
            hvd.barrier()
            hvd.barrier()
            assert all(reference() is None for reference in watch.described)
    else:
        for _ in line():
            hvd.allreduce_(tensor(), name="interrupted.gone")
            hvd.barrier()
            hvd.barrier()


@CASES.add
def what_is_let_go_may_submit() -> None:
    """The tensors of an interrupted operation go when the next one is submitted: their finalizers, which may
    submit, leave that one as it is."""
    nested: list[int] = []

    def submit() -> None:
        nested.append(hvd.allreduce_async(torch.full((4,), 100.0), name="interrupted.nested", op=hvd.Sum))

    def call() -> None:
        given = tensor()
        weakref.finalize(given, submit)
        hvd.allreduce_(given, name="interrupted.finalized")

    if hvd.rank() == 0:
        with _pipe().open("w", encoding="ascii", buffering=1) as pipe:
            _, watch = attempt(call, LATE)
            assert watch.struck
            pipe.write("come\n")
            hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="interrupted.first"))
    else:
        for _ in line():
            hvd.allreduce_(tensor(), name="interrupted.finalized")
            hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="interrupted.first"))
        submit()
    assert hvd.allreduce(torch.full((3,), 2.0), name="interrupted.outer", op=hvd.Sum).tolist() == [4.0] * 3
    assert hvd.synchronize(nested.pop()).tolist() == [200.0] * 4
