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
import binascii
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from horovod.errors import LaunchError
from horovod.launch.placement.hosts import HostSlots

__all__ = ["ARRIVED", "TASK", "Arrival", "bytes_of", "down_key", "text_of", "up_key"]

ARRIVED = "arrived/"
TASK = "task/"
_ID = re.compile(r"[A-Za-z0-9.-]{1,64}")
_MOST_WORD_CHARACTERS = 1 << 12
_MOST_GPUS = 1024
_MOST_NUMBER = 1 << 31


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

    task: str
    index: int
    attempt: int
    host: str
    machine: str
    worker: str
    gpus: tuple[str, ...]
    directory: str
    python: str

    def __post_init__(self) -> None:
        HostSlots(self.host, 1)  # refuses what is no name
        if not _ID.fullmatch(self.task):
            raise ValueError("task is no name")
        for number in (self.index, self.attempt):
            if not 0 <= number < _MOST_NUMBER:
                raise ValueError("a number is out of range")
        texts = (self.machine, self.worker, self.directory, self.python, *self.gpus)
        if any(len(text) > _MOST_WORD_CHARACTERS or "\0" in text for text in texts):
            raise ValueError("a text is too long")
        if len(self.gpus) > _MOST_GPUS or any("," in gpu for gpu in self.gpus):
            raise ValueError("gpus are no addresses")

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
            if not isinstance(value, Mapping) or value.get("task") != task:
                raise ValueError("not of this task")
            given = {field.name: value[field.name] for field in fields(cls)}
            gpus = given["gpus"]
            if not isinstance(gpus, list) or not all(isinstance(each, str) for each in gpus):
                raise ValueError("gpus are no addresses")
            for name, each in given.items():
                wanted = int if name in ("index", "attempt") else str
                if name != "gpus" and type(each) is not wanted:
                    raise ValueError(f"{name} is of another type")
            return cls(**{**given, "gpus": tuple(gpus)})
        except (ValueError, KeyError, TypeError) as error:
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


def bytes_of(text: str) -> bytes:
    """The opposite. Raises ``ValueError``."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
