"""Messages that a task and the launcher leave for each other in the store. Whoever knows the job's key may
write there, so what is read is checked first. Of the task T:

    arrived/T        that it is there, and where (`Arrival`)
    task/T/down/N/   the N-th word of the launcher: `begin` an agent, `data` for its standard input, `eof`
                     there, `kill` it; at last `over`, with the reason if the task has failed
    task/T/up/N/     the N-th of the task: `data` from the agent's standard output, or that it has `ended`

Each word is removed when it has been read. The scope task/T/ is watched by the task: if that goes, it is
aborted.
"""

from __future__ import annotations

import base64
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from horovod.bootstrap.records import Malformed, listed, record, text, whole
from horovod.errors import LaunchError
from horovod.launch.placement.hosts import host_name

__all__ = ["ARRIVED", "TASK", "Arrival", "bytes_of", "down_key", "text_of", "up_key"]

ARRIVED = "arrived/"
TASK = "task/"
_MOST_WORD_CHARACTERS = 1 << 12
_MOST_GPUS = 1024

_Id = Annotated[str, text(fits=re.compile(r"[A-Za-z0-9.-]{1,64}").fullmatch, what="is no name")]
_Number = Annotated[int, whole(0, (1 << 31) - 1)]
_Host = Annotated[str, host_name]
_Word = Annotated[
    str, text(_MOST_WORD_CHARACTERS, fits=lambda word: "\0" not in word, what="is no text, or too long")
]
_Gpu = text(_MOST_WORD_CHARACTERS, fits=lambda gpu: not {",", "\0"} & {*gpu}, what="has no address of a GPU")
_Gpus = Annotated[tuple[str, ...], listed(_Gpu, _MOST_GPUS)]


@dataclass(frozen=True)
class Arrival:
    """A task is there.

    Attributes:
        task: its name, never used again in a job: each attempt has its own.
        index: its number among the tasks of the job.
        attempt: how often the system has tried this before.
        host: what its host calls itself.
        machine: the same text if and only if two tasks may share memory and devices.
        worker: what runs it, for messages ("executor 3").
        gpus: addresses of those that the system has given to the task.
        directory: where it works.
        python: the interpreter.
    """

    task: _Id
    index: _Number
    attempt: _Number
    host: _Host
    machine: _Word
    worker: _Word
    gpus: _Gpus
    directory: _Word
    python: _Word

    def said(self) -> dict[str, Any]:
        """As the store carries it."""
        return asdict(self)

    @classmethod
    def understood(cls, task: str, value: object) -> Arrival:
        """Decode the arrival of a task.

        Raises:
            LaunchError: it is no such thing.
        """
        try:
            arrival = record(cls)(value)
            if arrival.task != task:
                raise Malformed("is another task's", ("task",))
            return arrival
        except ValueError as error:
            raise LaunchError(
                f"What a task told through the store makes no sense ({error}). Do all hosts run the same "
                "version of Farandole?"
            ) from error


def down_key(task: str, number: int) -> str:
    return f"{TASK}{task}/down/{number}/"


def up_key(task: str, number: int) -> str:
    return f"{TASK}{task}/up/{number}/"


def text_of(data: bytes | bytearray | memoryview) -> str:
    """Bytes, as the store carries them."""
    return base64.b64encode(data).decode("ascii")


def bytes_of(word: str) -> bytes:
    """The opposite. Raises ``ValueError``."""
    return base64.b64decode(word, validate=True)
