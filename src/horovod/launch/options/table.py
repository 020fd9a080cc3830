"""Every option of ``horovodrun``, in one table.

The parser, ``--help``, config files, the variables of the workers and shell completion are made from it.
Options of settings are made from ``horovod.config``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from horovod.bootstrap.variables import WITHOUT_EFFECT
from horovod.config import SETTINGS, Flag, Setting, at_least, one_of
from horovod.launch.contracts.registry import CHOICES, LAUNCHERS
from horovod.launch.placement.hosts import HOSTS_FORM

__all__ = ["SHELLS", "TABLE", "Option", "every_option", "spellings"]

SHELLS = ("bash", "zsh", "fish")
STDIN_CHOICES = ("0", "all", "none")
_AS_TUNING = "no effect, as --autotune has none"


class Option(NamedTuple):
    """One option: how it is written, what it takes, and what it becomes.

    Attributes:
        spellings: as written on the command line; those with two dashes are also keys of a config file.
        name: of the value; several switches with one name set different values of it.
        help: a line for ``--help``; empty: not shown there.
        metavar: stands for its value in ``--help``; empty: a switch, which sets ``value``.
        read: makes the value of its text; ValueError says what is wrong with it.
        values: how many words it takes, if it is not a switch.
        listed: the value is a tuple of texts; a config file may have a list of them.
        repeatable: may be given several times; the values are collected in a list.
        variable: environment variable of the workers; ``as_text`` makes its text.
        needs: the name of a switch; without it the variable is not set.
        key: its place ``section.key`` in a config file, beside the long spellings.
        implied: what it is if the file has the section without the key; None: not given.
        apart: options with the same text here exclude each other.
        warning: what to use instead of an old spelling.
        path: what kind of path it takes, for completion: ``file`` or ``directory``.
        ours: not an option of the reference; gives way when an abbreviation could mean either.
        in_file: may be given in a config file.
    """

    spellings: tuple[str, ...]
    name: str
    help: str = ""
    metavar: str = ""
    read: Callable[[str], Any] = str
    value: Any = True
    values: int = 1
    listed: bool = False
    repeatable: bool = False
    variable: str = ""
    as_text: Callable[[Any], str] = str
    needs: str = ""
    key: str = ""
    implied: bool | None = None
    apart: str = ""
    warning: str = ""
    choices: tuple[str, ...] = ()
    path: str = ""
    ours: bool = False
    in_file: bool = True

    @property
    def is_switch(self) -> bool:
        return not self.metavar

    @property
    def longest(self) -> str:
        """The spelling that explains itself."""
        return max(self.spellings, key=len)


def every_option() -> Iterator[Option]:
    for options in TABLE.values():
        yield from options


def spellings() -> dict[str, Option]:
    return {spelling: option for option in every_option() for spelling in option.spellings}


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has an empty name; expected: eth0,eth1")
    return names


def _processes(text: str) -> int:
    """Read a number of processes; 0: the one that fits, as if no number were given."""
    number: int = 0 if text == "auto" else at_least(1)(text)
    return number


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be split into words: {error}") from None


def _rank_ranges(text: str) -> tuple[range, ...]:
    found = re.fullmatch(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*", text)
    ranges = [part.partition("-") for part in text.split(",")] if found else []
    ranks = tuple(range(int(first), int(last or first) + 1) for first, _, last in ranges)
    if not all(ranks) or not ranks:
        raise ValueError(f"{text!r} does not name ranks; expected: 0 or 0,4-7")
    return ranks


def _of_settings(group: str) -> tuple[Option, ...]:
    """The options of this group that settings have."""
    return tuple(
        option
        for setting in SETTINGS.values()
        if setting.flag is not None and setting.flag.group == group
        for option in _of_setting(setting, setting.flag)
    )


def _of_setting(setting: Setting, flag: Flag) -> Iterator[Option]:
    def verbatim(text: str) -> str:
        setting.parse(text)
        return text

    name = flag.spelling.strip("-").replace("-", "_")
    variable = setting.variables[0]
    help = setting.doc.partition(". ")[0].rstrip(".")
    help = help[0].lower() + help[1:]
    if flag.metavar:
        default = str(int(setting.default) // flag.unit) if flag.unit > 1 else setting.default
        yield Option(
            (flag.spelling,),
            name,
            f"{help} (default {default})" if default else help,
            flag.metavar,
            flag.read or verbatim,
            as_text=lambda value: str(value * flag.unit),
            variable=variable,
            key=flag.key,
            choices=flag.choices,
            path=flag.path,
            ours=flag.ours,
        )
        return
    yield Option(
        (flag.spelling,), name, help, value=1, variable=variable, key=flag.key, apart=name, ours=flag.ours
    )
    yield Option(
        (flag.off,), name, value=0, variable=variable, key=flag.off_key, implied=flag.implied, apart=name,
        ours=flag.ours,
    )  # fmt: skip


def _switches(name: str) -> tuple[Option, Option]:
    """``--x`` and ``--no-x`` for a parameter that has a variable and a place in the section `params`."""
    underscored = name.replace("-", "_")
    variable = f"HOROVOD_{underscored.upper()}"
    return (
        Option(
            (f"--{name}",), underscored, _in_vain(variable), value=1, variable=variable,
            key=f"params.{underscored}", apart=name,
        ),
        Option((f"--no-{name}",), underscored, value=0, variable=variable, apart=name),
    )  # fmt: skip


def _in_vain(variable: str) -> str:
    """The help of an option whose variable has no effect."""
    return f"no effect: {next(row.why for row in WITHOUT_EFFECT if variable in row.variables)}"


_COUNT = at_least(0)
_OLD_LOG_TIME = {
    "--log-without-timestamp": "--log-hide-timestamp",
    "--log-with-timestamp": "--no-log-hide-timestamp",
}
_GENERAL = (
    Option(("-h", "--help"), "help", "show this and exit", in_file=False),
    Option(
        ("-v", "--version"), "version", "show the versions of the interface and of Farandole, and exit",
        in_file=False,
    ),
    Option(
        ("-cb", "--check-build"), "check_build", "show what this installation can do, and exit", in_file=False
    ),
    Option(("--json",), "json", "with --check-build: as JSON", ours=True, in_file=False),
    Option(
        ("--completion",), "completion", f"print a completion script for {', '.join(SHELLS)}, and exit",
        "SHELL", one_of(*SHELLS, fold=str.lower), choices=SHELLS, ours=True, in_file=False,
    ),
    Option(
        ("-np", "--num-proc"), "num_proc",
        "number of processes to start; auto (the default): every slot of the hosts given, or of the "
        "allocation; else one for each GPU of this machine, or for each core",
        "N", _processes,
    ),
    Option(
        ("--config-file",), "config_file", "YAML file with options; those given here win over it", "FILE",
        path="file", in_file=False,
    ),
    Option(("--verbose",), "verbose", "tell on standard error what happens"),
    Option(
        ("--no-status",), "status", "no line on the terminal that tells how far the job is; --status: always",
        value=False, apart="status", ours=True,
    ),
    Option(("--status",), "status", value=True, apart="status", ours=True),
    Option(
        ("--stdin",), "stdin",
        "who reads the standard input of horovodrun: rank 0 (the default), all (each gets a copy) or none; "
        "a script there (python - < train.py) goes to all",
        "WHO", one_of(*STDIN_CHOICES, fold=str.lower), choices=STDIN_CHOICES, ours=True,
    ),
    Option(("--dry-run",), "dry_run", "show which rank would run where, and exit", ours=True),
    *_of_settings("general"),
    Option(
        ("--max-restarts",), "max_restarts",
        "when a process has failed, start the job again, up to N times; the script finds its checkpoint",
        "N", _COUNT, ours=True,
    ),
    # The reference keeps a cache of its checks of other machines. There is nothing here to keep.
    Option(("--disable-cache",), "disable_cache"),
)  # fmt: skip

_HOSTS = (
    Option(("-H", "--hosts"), "hosts", HOSTS_FORM, "HOSTS", apart="hosts"),
    Option(
        ("-hostfile", "--hostfile"), "hostfile",
        "file with a host per line, in any form that MPI knows: server1 slots=4", "FILE",
        apart="hosts", path="file",
    ),
)  # fmt: skip

_NETWORK = (
    Option(("-p", "--ssh-port"), "ssh_port", "port of the ssh servers", "PORT", at_least(1, at_most=65535)),
    Option(
        ("-i", "--ssh-identity-file"), "ssh_identity_file", "private key for ssh", "FILE", path="file"
    ),
    Option(
        ("--ssh-args",), "ssh_args", 'further arguments for ssh: --ssh-args="-l user -o Compression=yes"',
        "WORDS", _words, listed=True, ours=True,
    ),
    Option(
        ("--network-interfaces",), "network_interfaces",
        "interfaces that ranks of different hosts may use (default: those that work)", "A,B,...", _names,
        listed=True, repeatable=True,
    ),
    Option(
        ("--network-interface",), "network_interfaces", "the same, one at a time; may be repeated", "A",
        _names, listed=True, repeatable=True,
    ),
)  # fmt: skip

_LAUNCHERS = (
    Option(
        ("--launcher",), "launcher",
        f"how processes are started: {CHOICES[0]} (the default; directly on this machine), "
        f"{', '.join(CHOICES[1:-1])} or {CHOICES[-1]}",
        "NAME", one_of(*CHOICES, fold=str.lower), choices=CHOICES, apart="launcher", ours=True,
    ),
    *(
        Option((row.switch,), "launcher", f"the same as --launcher {row.name}", value=row.name,
               apart="launcher")
        for row in LAUNCHERS.values()
        if row.switch
    ),
    Option(
        ("--mpi-args",), "mpi_args", 'further arguments for that launcher: --mpi-args="--mca x y"', "WORDS",
        _words, listed=True,
    ),
    Option(
        ("--binding-args",), "binding_args",
        "how that launcher binds processes to cores, in place of: not at all", "WORDS", _words,
    ),
    Option(
        ("--tcp",), "tcp", "no InfiniBand: NCCL_IB_DISABLE=1, and -tcp for Spectrum MPI", value=1,
        variable="NCCL_IB_DISABLE",
    ),
)  # fmt: skip

_OUTPUT = (
    Option(
        ("--output-filename",), "output_filename",
        "also write what rank R prints to DIR/rank.R/stdout and DIR/rank.R/stderr", "DIR", path="directory",
    ),
    Option(
        ("--show-ranks",), "show_ranks",
        "show only what these ranks print, such as 0 or 0,4-7; --output-filename keeps that of all", "RANKS",
        _rank_ranges, ours=True,
    ),
    Option(
        ("-prefix-timestamp", "--prefix-output-with-timestamp"), "prefix_output_with_timestamp",
        "put the local time before every line that a process prints",
    ),
)  # fmt: skip

_TUNING = (
    *_of_settings("tuning"),
    *_switches("hierarchical-allreduce"),
    *_switches("hierarchical-allgather"),
    *_switches("torus-allreduce"),
    Option(
        ("--autotune",), "autotune", _in_vain("HOROVOD_AUTOTUNE"), value=1, variable="HOROVOD_AUTOTUNE",
        key="autotune.enabled", implied=False, apart="autotune",
    ),
    Option(("--no-autotune",), "autotune", value=0, variable="HOROVOD_AUTOTUNE", apart="autotune"),
    Option(
        ("--autotune-log-file",), "autotune_log_file", _AS_TUNING, "FILE", path="file",
        variable="HOROVOD_AUTOTUNE_LOG", needs="autotune", key="autotune.log_file",
    ),
    *(
        Option(
            (f"--autotune-{name.replace('_', '-')}",), f"autotune_{name}", _AS_TUNING, "N", _COUNT,
            variable=f"HOROVOD_AUTOTUNE_{name.upper()}", needs="autotune", key=f"autotune.{name}",
        )
        for name in ("warmup_samples", "steps_per_sample", "bayes_opt_max_samples")
    ),
    Option(
        ("--autotune-gaussian-process-noise",), "autotune_gaussian_process_noise", _AS_TUNING, "NOISE",
        at_least(0, float, at_most=1), variable="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        needs="autotune", key="autotune.gaussian_process_noise",
    ),
)  # fmt: skip

_ELASTIC = (
    Option(
        ("--min-np", "--min-num-proc"), "min_num_proc",
        "go on with as few processes as N after failures (this makes the job elastic)", "N", at_least(1),
    ),
    Option(
        ("--max-np", "--max-num-proc"), "max_num_proc",
        "grow to N processes (default: all slots that there are)", "N", at_least(1),
    ),
    Option(
        ("--host-discovery-script",), "host_discovery_script",
        "asked each second; prints host or host:slots, one a line (this makes the job elastic)", "COMMAND",
        path="file",
    ),
    Option(
        ("--slots-per-host",), "slots_per_host", "slots of hosts that the script names without a number", "N",
        at_least(1),
    ),
    *_of_settings("elastic"),
    Option(
        ("--reset-limit",), "reset_limit", "changes of the world that are allowed (default: any number)", "N",
        _COUNT,
    ),
    Option(
        ("--blacklist-cooldown-range",), "blacklist_cooldown_range",
        "use a failed host again after MIN to MAX seconds, longer each time (default: never)", "SECONDS",
        at_least(1, at_most=3600), values=2,
    ),
    Option(
        ("--failure-domain",), "failure_domain",
        "what a failed process costs: its host, or its slot (default: its host, if others go on)", "WHAT",
        one_of("host", "slot"), choices=("host", "slot"), ours=True,
    ),
    Option(
        ("--spares",), "spares", "keep N processes ready beyond --max-np, to take over at once", "N", _COUNT,
        ours=True,
    ),
    Option(
        ("--elastic-events",), "elastic_events", "keep what happens to the world in this file, as JSON lines",
        "FILE", path="file", ours=True,
    ),
    Option(
        ("--state",), "state", "keep the state of the job in this file, so that it outlives horovodrun",
        "FILE", path="file", ours=True,
    ),
    Option(
        ("--driver-wait",), "driver_wait",
        "with --state: how long processes wait for --resume (600)", "SECONDS",
        at_least(1, float, at_most=10_000_000), ours=True,
    ),
    Option(
        ("--resume",), "resume", "go on with the job of this file, whose horovodrun was killed",
        "FILE", path="file", ours=True, in_file=False,
    ),
)  # fmt: skip

# A group of their own: hiding the log's time stamps goes together with --prefix-output-with-timestamp.
_LOGGING = _of_settings("logging")
_OLD = tuple(
    option._replace(spellings=(old,), help="", key="", warning=f"use {' or '.join(_OLD_LOG_TIME)}")
    for option in _LOGGING
    if (old := _OLD_LOG_TIME.get(option.longest))
)

TABLE: Mapping[str, Sequence[Option]] = {
    "general": _GENERAL,
    "hosts (default: those of the allocation this runs in, else this machine)": _HOSTS,
    "network": _NETWORK,
    "launcher": _LAUNCHERS,
    "output": _OUTPUT,
    "tuning": _TUNING,
    "elastic": _ELASTIC,
    "timeline": _of_settings("timeline"),
    "stall check": _of_settings("stall check"),
    "libraries": _of_settings("libraries"),
    "logging": (*_LOGGING, *_OLD),
}
