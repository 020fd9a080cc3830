"""Values of the options: as they were given, and in types, for all that comes after the command line.

`Given` is filled by the command line and by a config file; `typed` reads it once. Nothing else looks an
option up by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from horovod.launch.contracts.job import SshOptions
from horovod.launch.options.table import Option, every_option

__all__ = ["ElasticOptions", "Given", "LaunchOptions", "typed"]

T = TypeVar("T")

# Named tuples, not frozen dataclasses: those take 0.4 ms each to define, in every `horovodrun`.


class ElasticOptions(NamedTuple):
    """Options of an elastic job, named as those of ``horovodrun``; None: not given."""

    min_num_proc: int | None = None
    max_num_proc: int | None = None
    host_discovery_script: str | None = None
    slots_per_host: int | None = None
    reset_limit: int | None = None
    blacklist_cooldown_range: Sequence[float] | None = None
    failure_domain: str | None = None
    spares: int | None = None
    elastic_events: str | None = None
    state: str | None = None
    driver_wait: float | None = None


class LaunchOptions(NamedTuple):
    """Options of ``horovodrun``, from the command line and the config file that it names.

    Attributes:
        command: the program and its arguments; empty if only a report or a script was asked for.
        processes: number of processes; None: as many as fit.
        variables: environment variables of the workers that options stand for.
        shown_ranks: ranks whose output is shown; None: all.
        elastic: None: the hosts and the processes of the job do not change.
        notices: sentences for the user.
    """

    command: tuple[str, ...]
    processes: int | None
    hosts: str | None
    hostfile: str | None
    launcher: str | None
    launcher_arguments: tuple[str, ...]
    binding: tuple[str, ...] | None
    tcp: bool
    ssh: SshOptions
    interfaces: tuple[str, ...]
    variables: Mapping[str, str]
    output_directory: Path | None
    shown_ranks: tuple[range, ...] | None
    timestamps: bool
    status: bool | None
    verbose: bool
    log_level: str | None
    stdin: str | None
    elastic: ElasticOptions | None
    max_restarts: int
    dry_run: bool
    resume: str | None
    version: bool
    completion: str | None
    check_build: bool
    json: bool
    notices: tuple[str, ...]

    @property
    def has_hosts(self) -> bool:
        """True if the user has named the hosts to begin with."""
        return self.hosts is not None or self.hostfile is not None

    @property
    def finds_hosts(self) -> bool:
        """True if the user has said where the hosts come from, by name or by a script."""
        script = None if self.elastic is None else self.elastic.host_discovery_script
        return self.has_hosts or script is not None


class Given:
    """Options as they were given, until `typed` has read them.

    Attributes:
        command: the program and its arguments.
        order: spelling and row of each option of the command line.
        notices: sentences for the user.
    """

    def __init__(self) -> None:
        self.command: tuple[str, ...] = ()
        self.order: list[tuple[str, Option]] = []
        self.notices: list[str] = []
        self._values: dict[str, Any] = {option.name: None for option in every_option()}

    def give(self, option: Option, value: Any) -> None:
        """Set the value of an option, or add to it."""
        if option.repeatable:
            value = (*(self._values[option.name] or ()), value)
        self._values[option.name] = value

    def get(self, name: str, kind: type[T]) -> T | None:
        """Value of an option; None: not given."""
        value = self._values[name]
        assert value is None or isinstance(value, kind), f"{name}={value!r} is not of type {kind.__name__}"
        return value

    def __contains__(self, name: str) -> bool:
        return self._values[name] is not None

    def has(self, name: str) -> bool:
        """Return whether a switch is on."""
        return bool(self._values[name])

    def variables(self) -> Iterator[tuple[str, str]]:
        """Environment variables that the given options stand for, and their texts."""
        for option in every_option():
            needed = not option.needs or self.has(option.needs)
            if option.variable and option.name in self and needed:
                yield option.variable, option.as_text(self._values[option.name])


def typed(given: Given) -> LaunchOptions:
    """Read every option that is more than a variable of the workers."""
    interfaces = [name for names in given.get("network_interfaces", tuple) or () for name in names]
    output = given.get("output_filename", str)
    elastic = _elastic(given)
    return LaunchOptions(
        command=given.command,
        processes=given.get("num_proc", int) or None,
        hosts=given.get("hosts", str),
        hostfile=given.get("hostfile", str),
        launcher=given.get("launcher", str),
        launcher_arguments=given.get("mpi_args", tuple) or (),
        binding=given.get("binding_args", tuple),
        tcp=given.has("tcp"),
        ssh=SshOptions(
            port=given.get("ssh_port", int),
            identity_file=given.get("ssh_identity_file", str),
            arguments=given.get("ssh_args", tuple) or (),
        ),
        interfaces=tuple(dict.fromkeys(interfaces)),
        variables=dict(given.variables()),
        output_directory=Path(output) if output else None,
        shown_ranks=given.get("show_ranks", tuple),
        timestamps=given.has("prefix_output_with_timestamp"),
        status=given.get("status", bool),
        verbose=given.has("verbose"),
        log_level=given.get("log_level", str),
        stdin=given.get("stdin", str),
        elastic=elastic,
        max_restarts=given.get("max_restarts", int) or 0,
        dry_run=given.has("dry_run"),
        resume=given.get("resume", str),
        version=given.has("version"),
        completion=given.get("completion", str),
        check_build=given.has("check_build"),
        json=given.has("json"),
        notices=(*given.notices, *(() if elastic is not None else _in_vain(given))),
    )


def _elastic(given: Given) -> ElasticOptions | None:
    if "min_num_proc" not in given and "host_discovery_script" not in given:
        return None
    return ElasticOptions(
        min_num_proc=given.get("min_num_proc", int),
        max_num_proc=given.get("max_num_proc", int),
        host_discovery_script=given.get("host_discovery_script", str),
        slots_per_host=given.get("slots_per_host", int),
        reset_limit=given.get("reset_limit", int),
        blacklist_cooldown_range=given.get("blacklist_cooldown_range", list),
        failure_domain=given.get("failure_domain", str),
        spares=given.get("spares", int),
        elastic_events=given.get("elastic_events", str),
        state=given.get("state", str),
        driver_wait=given.get("driver_wait", float),
    )


def _in_vain(given: Given) -> Iterator[str]:
    """Sentences about options of elastic jobs, for a job that is not."""
    for option in every_option():
        if option.name in ElasticOptions._fields and option.name in given:
            yield f"{option.spellings[0]} has no effect without --min-np or --host-discovery-script"
