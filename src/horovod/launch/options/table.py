"""Every option of ``horovodrun``, in one table.

The parser, ``--help``, config files, the variables of the workers and shell completion are made from it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.launch.launchers.contract import LAUNCHERS
from horovod.launch.placement.hosts import HOSTS_FORM

__all__ = ["LAUNCHER_NAMES", "SHELLS", "TABLE", "Option", "every_option", "spellings"]

LAUNCHER_NAMES = tuple(name for name in LAUNCHERS if name != "local")  # ssh, where every host is this one
SHELLS = ("bash", "zsh", "fish")
_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

_NO_ELASTIC = "this version runs a fixed number of processes; give -np and -H instead"
_NO_TUNING = "this version does not tune itself; set --fusion-threshold-mb and --cycle-time-ms by hand"


@dataclass(frozen=True)
class Option:
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
        key: its place ``section.key`` in a config file, beside the long spellings.
        apart: options with the same text here exclude each other.
        refused: why this version does not serve it, and what to use.
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
    key: str = ""
    apart: str = ""
    refused: str = ""
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

    def give(self, arguments: argparse.Namespace, value: Any) -> None:
        """Set the value of this option, or add to it."""
        if self.repeatable:
            value = (*(getattr(arguments, self.name) or ()), value)
        setattr(arguments, self.name, value)


def every_option() -> Iterator[Option]:
    for options in TABLE.values():
        yield from options


def spellings() -> dict[str, Option]:
    return {spelling: option for option in every_option() for spelling in option.spellings}


def _at_least(
    minimum: float, kind: type[int] | type[float] = int, at_most: float = float("inf")
) -> Callable[[str], Any]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise ValueError(f"{text!r} is not {number}") from None
        if not minimum <= value < float("inf"):
            raise ValueError(f"must be at least {minimum}, not {text}")
        if value > at_most:
            raise ValueError(f"must be at most {at_most}, not {text}")
        return value

    return convert


def _one_of(*choices: str, fold: Callable[[str], str] = str.lower) -> Callable[[str], Any]:
    def convert(text: str) -> str:
        if fold(text) not in choices:
            raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(choices)})")
        return fold(text)

    return convert


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has an empty name; expected: eth0,eth1")
    return names


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be split into words: {error}") from None


def _mebibytes(value: int) -> str:
    return str(value * 1024 * 1024)


def _switches(name: str, help: str) -> tuple[Option, Option]:
    """``--x`` and ``--no-x`` for a parameter that has a variable and a place in the section `params`."""
    underscored = name.replace("-", "_")
    variable = f"HOROVOD_{underscored.upper()}"
    return (
        Option(
            (f"--{name}",), underscored, f"{help} ({variable}); --no-{name}: never",
            value=1, variable=variable, key=f"params.{underscored}", apart=name,
        ),
        Option((f"--no-{name}",), underscored, value=0, variable=variable, apart=name),
    )  # fmt: skip


def _later(spellings: tuple[str, ...], name: str, why: str, **further: Any) -> Option:
    return Option(spellings, name, refused=why, **further)


_COUNT = _at_least(0)
_GENERAL = (
    Option(("-h", "--help"), "help", "show this and exit", in_file=False),
    Option(("-v", "--version"), "version", "show the version and exit", in_file=False),
    Option(
        ("-cb", "--check-build"), "check_build", "show what this installation can do, and exit", in_file=False
    ),
    Option(("--json",), "json", "with --check-build: as JSON", ours=True, in_file=False),
    Option(
        ("--completion",), "completion", f"print a completion script for {', '.join(SHELLS)}, and exit",
        "SHELL", _one_of(*SHELLS), choices=SHELLS, ours=True, in_file=False,
    ),
    Option(
        ("-np", "--num-proc"), "num_proc",
        "number of processes to start (default: every slot of the hosts given, or of the allocation)",
        "N", _at_least(1),
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
    Option(("--dry-run",), "dry_run", "show which rank would run where, and exit", ours=True),
    Option(
        ("--start-timeout",), "start_timeout",
        "how long the processes may take to find each other (default: HOROVOD_START_TIMEOUT, else 30)",
        "SECONDS", _at_least(1), variable="HOROVOD_START_TIMEOUT",
    ),
    Option(
        ("--failure-patience",), "failure_patience",
        "when a rank has failed, how long the others may take to notice and end by themselves (default 1)",
        "SECONDS", _at_least(0.0), variable="HOROVOD_FAILURE_PATIENCE_SECONDS", ours=True,
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
    Option(("-p", "--ssh-port"), "ssh_port", "port of the ssh servers", "PORT", _at_least(1, at_most=65535)),
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
        "how processes are started: ssh (the default; directly on this machine), mpirun, srun or jsrun",
        "NAME", _one_of(*LAUNCHER_NAMES), choices=LAUNCHER_NAMES, apart="launcher", ours=True,
    ),
    Option(("--gloo",), "launcher", "the same as --launcher ssh", value="ssh", apart="launcher"),
    Option(("--mpi",), "launcher", "the same as --launcher mpirun", value="mpirun", apart="launcher"),
    Option(("--jsrun",), "launcher", "the same as --launcher jsrun", value="jsrun", apart="launcher"),
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
        ("-prefix-timestamp", "--prefix-output-with-timestamp"), "prefix_output_with_timestamp",
        "put the local time before every line that a process prints",
    ),
)  # fmt: skip

_TUNING = (
    Option(
        ("--fusion-threshold-mb",), "fusion_threshold_mb",
        "largest buffer that tensors are combined into, 0: none (default 128)", "MB", _COUNT,
        variable="HOROVOD_FUSION_THRESHOLD", as_text=_mebibytes, key="params.fusion_threshold_mb",
    ),
    Option(
        ("--cycle-time-ms",), "cycle_time_ms",
        "how long a tensor that nobody waits for may wait for others (default 1)", "MS", _at_least(0, float),
        variable="HOROVOD_CYCLE_TIME", key="params.cycle_time_ms",
    ),
    Option(
        ("--cache-capacity",), "cache_capacity", "HOROVOD_CACHE_CAPACITY, 0: no cache", "N", _COUNT,
        variable="HOROVOD_CACHE_CAPACITY", key="params.cache_capacity",
    ),
    *_switches("hierarchical-allreduce", "allreduce within hosts first"),
    *_switches("hierarchical-allgather", "allgather within hosts first"),
    *_switches("torus-allreduce", "allreduce in two dimensions"),
    _later(
        ("--autotune",), "autotune", _NO_TUNING, value=1, variable="HOROVOD_AUTOTUNE", key="autotune.enabled",
        apart="autotune",
    ),
    Option(("--no-autotune",), "autotune", value=0, variable="HOROVOD_AUTOTUNE", apart="autotune"),
    _later(
        ("--autotune-log-file",), "autotune_log_file", _NO_TUNING, metavar="FILE", path="file",
        variable="HOROVOD_AUTOTUNE_LOG", key="autotune.log_file",
    ),
    *(
        _later(
            (f"--autotune-{name.replace('_', '-')}",), f"autotune_{name}", _NO_TUNING, metavar="N",
            read=_COUNT, variable=f"HOROVOD_AUTOTUNE_{name.upper()}", key=f"autotune.{name}",
        )
        for name in ("warmup_samples", "steps_per_sample", "bayes_opt_max_samples")
    ),
    _later(
        ("--autotune-gaussian-process-noise",), "autotune_gaussian_process_noise", _NO_TUNING,
        metavar="NOISE", read=_at_least(0, float, at_most=1),
        variable="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", key="autotune.gaussian_process_noise",
    ),
)  # fmt: skip

_ELASTIC = (
    _later(("--min-np", "--min-num-proc"), "min_num_proc", _NO_ELASTIC, metavar="N", read=_at_least(1)),
    _later(("--max-np", "--max-num-proc"), "max_num_proc", _NO_ELASTIC, metavar="N", read=_at_least(1)),
    _later(("--slots-per-host",), "slots_per_host", _NO_ELASTIC, metavar="N", read=_at_least(1)),
    _later(("--elastic-timeout",), "elastic_timeout", _NO_ELASTIC, metavar="SECONDS", read=_COUNT),
    _later(("--reset-limit",), "reset_limit", _NO_ELASTIC, metavar="N", read=_COUNT),
    _later(
        ("--blacklist-cooldown-range",), "blacklist_cooldown_range", _NO_ELASTIC, metavar="SECONDS",
        read=_at_least(1, at_most=3600), values=2,
    ),
    _later(
        ("--host-discovery-script",), "host_discovery_script", _NO_ELASTIC, metavar="COMMAND", path="file",
        apart="hosts",
    ),
)  # fmt: skip

_TIMELINE = (
    Option(
        ("--timeline-filename",), "timeline_filename",
        "rank 0 records here when operations were negotiated and run; DYNAMIC: none until "
        "start_timeline() is called",
        "FILE", variable="HOROVOD_TIMELINE", key="timeline.filename", path="file",
    ),
    Option(
        ("--timeline-mark-cycles",), "timeline_mark_cycles",
        "mark in that file when the engine begins to work", value=1,
        variable="HOROVOD_TIMELINE_MARK_CYCLES", key="timeline.mark_cycles", apart="mark cycles",
    ),
    Option(
        ("--no-timeline-mark-cycles",), "timeline_mark_cycles", value=0,
        variable="HOROVOD_TIMELINE_MARK_CYCLES", apart="mark cycles",
    ),
)  # fmt: skip

_STALL_CHECK = (
    Option(
        ("--no-stall-check",), "no_stall_check", "do not warn about processes that others wait for", value=1,
        variable="HOROVOD_STALL_CHECK_DISABLE", apart="stall check",
    ),
    Option(
        ("--stall-check",), "no_stall_check", value=0, variable="HOROVOD_STALL_CHECK_DISABLE",
        key="stall_check.enabled", apart="stall check",
    ),
    Option(
        ("--stall-check-warning-time-seconds",), "stall_check_warning_time_seconds",
        "warn after this time (default 60)", "SECONDS", _COUNT,
        variable="HOROVOD_STALL_CHECK_TIME_SECONDS", key="stall_check.warning_time_seconds",
    ),
    Option(
        ("--stall-check-shutdown-time-seconds",), "stall_check_shutdown_time_seconds",
        "end the job after this time, 0: never (default 0)", "SECONDS", _COUNT,
        variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", key="stall_check.shutdown_time_seconds",
    ),
)  # fmt: skip

_LIBRARIES = (
    Option(
        ("--gloo-timeout-seconds",), "gloo_timeout_seconds",
        "an operation fails after this time without progress (default 30)", "SECONDS", _COUNT,
        variable="HOROVOD_GLOO_TIMEOUT_SECONDS", key="library_options.gloo_timeout_seconds",
    ),
    Option(
        ("--thread-affinity",), "thread_affinity", "CPU of the engine's thread", "CPU", _COUNT,
        variable="HOROVOD_THREAD_AFFINITY", key="library_options.thread_affinity",
    ),
    Option(
        ("--num-nccl-streams",), "num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS (default 1)", "N", _COUNT,
        variable="HOROVOD_NUM_NCCL_STREAMS", key="library_options.num_nccl_streams",
    ),
    Option(
        ("--mpi-threads-disable",), "mpi_threads_disable", "MPI is used by one thread only", value=1,
        variable="HOROVOD_MPI_THREADS_DISABLE", key="library_options.mpi_threads_disable",
        apart="mpi threads",
    ),
    Option(
        ("--no-mpi-threads-disable",), "mpi_threads_disable", value=0,
        variable="HOROVOD_MPI_THREADS_DISABLE", apart="mpi threads",
    ),
)  # fmt: skip

_OLD_LOG_TIME = "use --log-without-timestamp or --log-with-timestamp"
_LOG_TIME: dict[str, Any] = {"variable": "HOROVOD_LOG_HIDE_TIME", "apart": "log time"}
_LOGGING = (
    Option(
        ("--log-level",), "log_level", f"{', '.join(_LOG_LEVELS)} (default WARNING)", "LEVEL",
        _one_of(*_LOG_LEVELS, fold=str.upper), variable="HOROVOD_LOG_LEVEL", key="logging.level",
        choices=_LOG_LEVELS,
    ),
    # A group of their own: hiding the log's time stamps goes together with --prefix-output-with-timestamp.
    Option(
        ("--log-without-timestamp",), "log_hide_time", "leave the time out of the log", value=1, **_LOG_TIME
    ),
    Option(
        ("--log-with-timestamp",), "log_hide_time", value=0, key="logging.with_timestamp", **_LOG_TIME
    ),
    Option(
        ("--log-hide-timestamp",), "log_hide_time", value=1, warning=_OLD_LOG_TIME, **_LOG_TIME
    ),
    Option(
        ("--no-log-hide-timestamp",), "log_hide_time", value=0, warning=_OLD_LOG_TIME, **_LOG_TIME
    ),
)  # fmt: skip

TABLE: Mapping[str, Sequence[Option]] = {
    "general": _GENERAL,
    "hosts (default: those of the allocation this runs in, else N slots on this machine)": _HOSTS,
    "network": _NETWORK,
    "launcher": _LAUNCHERS,
    "output": _OUTPUT,
    "tuning": _TUNING,
    "elastic": _ELASTIC,
    "timeline": _TIMELINE,
    "stall check": _STALL_CHECK,
    "libraries": _LIBRARIES,
    "logging": _LOGGING,
}
