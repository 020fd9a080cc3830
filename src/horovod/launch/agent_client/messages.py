"""Messages between the launcher and an agent: lines of JSON, and bytes that ranks print.

The agent's side is in ``agent.requests``, which can import nothing of ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from horovod.bootstrap.records import Malformed, fields, record, text, whole
from horovod.errors import LaunchError
from horovod.launch.contracts.events import (
    Continued,
    Event,
    Exited,
    FewDevices,
    Finished,
    Gone,
    LeftBehind,
    PassedOn,
    Refused,
    Said,
    Started,
    Stopped,
)
from horovod.runtime.ending import harmless

if TYPE_CHECKING:
    from horovod.bootstrap.records import Reader

__all__ = [
    "CannotFollow",
    "environment_text",
    "path_text",
    "plan_request",
    "request_line",
    "start_request",
    "to_event",
]

_MOST_SHOWN = 200


class CannotFollow(LaunchError):
    """An agent was asked for what it does not understand or has no room for; it ends its ranks."""


def plan_request(
    command: Iterable[str],
    environment: Mapping[str, str],
    workers: Iterable[Mapping[str, Any]],
    nofile: int,
    **further: object,
) -> bytes:
    """The first request.

    Args:
        environment: what all ranks of the host have in common.
        workers: per rank its number, its own environment and, on this host, the descriptors of its streams.
        nofile: limit on descriptors that ranks shall have, 0: the agent's.
        further: what the agent of another host needs besides, or one whose ranks come and go.
    """
    return request_line(
        {
            "command": [_byte_text(word) for word in command],
            "environment": environment_text(environment),
            "workers": [
                {**worker, "environment": environment_text(worker["environment"])} for worker in workers
            ],
            "nofile": nofile,
            **further,
        }
    )


def start_request(workers: Mapping[int, Mapping[str, str]]) -> bytes:
    """Further ranks, each with what is set for it only."""
    return request_line(
        {"start": [{"rank": rank, "environment": environment_text(own)} for rank, own in workers.items()]}
    )


def request_line(request: Mapping[str, object]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def environment_text(environment: Mapping[str, str]) -> dict[str, str]:
    """Names and values as the agent expects them."""
    return {_byte_text(name): _byte_text(value) for name, value in environment.items()}


def path_text(path: str) -> str:
    return _byte_text(path)


def to_event(message: dict[str, Any]) -> Event:
    """Turn a message of an agent into an event.

    Raises:
        CannotFollow: it refuses what it was asked for.
        LaunchError: it is not an event.
    """
    try:
        kind = _EVENT(message)["event"]
        if kind == "cannot":
            why = harmless(_CANNOT(message)["why"][:_MOST_SHOWN])
            raise CannotFollow(f"The process that watches the ranks cannot do what it is asked for: {why}.")
        return _EVENTS[kind](message)
    except (Malformed, KeyError) as error:
        raise LaunchError(
            f"The process that watches the ranks said something unknown ({error}): "
            f"{repr(message)[:_MOST_SHOWN]}"
        ) from error


_EVENT = fields({"event": text(64)})
_CANNOT = fields({"why": text()})
_EVENTS: Mapping[str, Reader[Event]] = {
    "started": record(Started),
    "said": record(Said),
    "exited": record(Exited, exit_code=whole(-127, 255)),
    "refused": record(Refused, errno=whole(1, (1 << 12) - 1)),
    "stopped": record(Stopped),
    "continued": record(Continued),
    "few_devices": record(FewDevices),
    "passed_on": record(PassedOn, signum=whole(1, 64)),
    "left_behind": record(LeftBehind),
    "gone": record(Gone, complete=True),
    "finished": record(Finished, failure=lambda _: None),  # no agent knows of one
}


def _byte_text(word: str) -> str:
    """The bytes of a word for the system, one character each: what the agent expects."""
    return os.fsencode(word).decode("latin-1")
