"""The command line of ``horovodrun``: which options exist, and what they mean.

Most options only become an environment variable of the workers; an option that is not given leaves an
inherited variable alone.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from horovod.errors import ConfigError, LaunchError
from horovod.launch.hosts import HOSTS_FORM, HostSlots, parse_hostfile, parse_hosts
from horovod.launch.job import Job

__all__ = ["make_parser", "option_environment", "parse_command_line", "to_job"]

_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

_USAGE = "horovodrun -np N [options] command [arguments]"

_DESCRIPTION = "Start N processes of a program that train together, and look after them."

_EPILOG = """\
examples:
  horovodrun -np 4 python train.py               four processes on this machine
  horovodrun -np 4 -H localhost:4 python train.py --epochs 3
  horovodrun -np 2 --output-filename logs python train.py
  horovodrun -np 2 --verbose python train.py     tell what happens
  horovodrun --check-build                       what this installation can do

Everything after the command belongs to the command. Options may be shortened
as long as they stay unambiguous.

exit status: 0 if every process succeeded, otherwise that of the first process
that failed (128 + N if signal N ended it, or told horovodrun to end); 127
command not found, 126 not executable, 2 wrong arguments, 1 anything else.

This version starts processes on one machine. Options for ssh, MPI, elastic
training, config files and autotuning are refused, with a reason.
"""

_ONE_MACHINE = (
    "this version starts processes on this machine only; for more, start one process per rank with your "
    "cluster's launcher"
)
_NO_MPI = "this version does not start processes through MPI; without the option it starts them itself"
_NO_ELASTIC = "this version runs a fixed number of processes; give -np and -H instead"
_NO_TUNING = "this version does not tune itself; set --fusion-threshold-mb and --cycle-time-ms by hand"
_NO_FILE = "this version does not read config files; give the options on the command line"

# Options of later versions: spellings, number of values (0: a flag), and what to say. Accepting them in
# silence would let a job run other than asked for.
_REFUSED: Sequence[tuple[tuple[str, ...], int, str]] = (
    (("--network-interfaces",), 1, _ONE_MACHINE),
    (("--network-interface",), 1, _ONE_MACHINE),
    (("-p", "--ssh-port"), 1, _ONE_MACHINE),
    (("-i", "--ssh-identity-file"), 1, _ONE_MACHINE),
    (("--config-file",), 1, _NO_FILE),
    (("--autotune",), 0, _NO_TUNING),
    (("--autotune-log-file",), 1, _NO_TUNING),
    (("--autotune-warmup-samples",), 1, _NO_TUNING),
    (("--autotune-steps-per-sample",), 1, _NO_TUNING),
    (("--autotune-bayes-opt-max-samples",), 1, _NO_TUNING),
    (("--autotune-gaussian-process-noise",), 1, _NO_TUNING),
    (("--min-np", "--min-num-proc"), 1, _NO_ELASTIC),
    (("--max-np", "--max-num-proc"), 1, _NO_ELASTIC),
    (("--slots-per-host",), 1, _NO_ELASTIC),
    (("--elastic-timeout",), 1, _NO_ELASTIC),
    (("--reset-limit",), 1, _NO_ELASTIC),
    (("--blacklist-cooldown-range",), 2, _NO_ELASTIC),
    (("--host-discovery-script",), 1, _NO_ELASTIC),
    (("--mpi-threads-disable",), 0, _NO_MPI),
    (("--mpi-args",), 1, _NO_MPI),
    (("--tcp",), 0, _NO_MPI),
    (("--binding-args",), 1, _NO_MPI),
    (("--mpi",), 0, _NO_MPI),
    (("--jsrun",), 0, _NO_MPI),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"horovodrun: {message}\nusage: {_USAGE}\n`horovodrun --help` lists the options.\n")


class _Refuse(argparse.Action):
    """Ends with an explanation instead of doing something else than asked for."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        raise LaunchError(f"{option_string}: {self.const}.")


class _LogTime(argparse.Action):
    """The switches for time stamps of the log; two spellings of each are old and warn."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if "hide" in (option_string or ""):
            warnings.warn(
                f"{option_string} is deprecated: use --log-without-timestamp or --log-with-timestamp",
                DeprecationWarning,
                stacklevel=2,
            )
        setattr(namespace, self.dest, self.const)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    _add_general(parser)
    _add_hosts(parser)
    _add_output(parser)
    _add_tunables(parser)
    _add_timeline(parser)
    _add_stall_check(parser)
    _add_libraries(parser)
    _add_logging(parser)
    for spellings, values, explanation in _REFUSED:
        parser.add_argument(
            *spellings,
            dest="refused",
            action=_Refuse,
            nargs=values,
            const=explanation,
            help=argparse.SUPPRESS,
        )
    return parser


def parse_command_line(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line. Wrong usage ends the process with status 2, as ``--help`` does with 0.

    Raises:
        LaunchError: an option that this version does not serve.
    """
    parser = make_parser()
    options, command = _split_command(parser, words)
    arguments = parser.parse_args(options, argparse.Namespace(command=command))
    if not (arguments.version or arguments.check_build):
        if arguments.num_proc is None:
            parser.error("-np is missing: how many processes?")
        if not arguments.command:
            parser.error("the command to run is missing")
    return arguments


def to_job(arguments: argparse.Namespace) -> Job:
    """What the parsed command line asks for.

    Raises:
        ConfigError: hosts cannot be read.
        LaunchError: the host file cannot be read.
    """
    return Job(
        command=tuple(arguments.command),
        processes=arguments.num_proc,
        hosts=_hosts(arguments),
        options=option_environment(arguments),
        timestamps=arguments.prefix_output_with_timestamp,
        output_directory=Path(arguments.output_filename) if arguments.output_filename else None,
    )


def option_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the given options stand for; options not given are absent."""
    given: dict[str, object] = {
        "HOROVOD_START_TIMEOUT": arguments.start_timeout,
        "HOROVOD_CYCLE_TIME": arguments.cycle_time_ms,
        "HOROVOD_CACHE_CAPACITY": arguments.cache_capacity,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": arguments.hierarchical_allreduce,
        "HOROVOD_HIERARCHICAL_ALLGATHER": arguments.hierarchical_allgather,
        "HOROVOD_TORUS_ALLREDUCE": arguments.torus_allreduce,
        "HOROVOD_AUTOTUNE": arguments.autotune,
        "HOROVOD_TIMELINE": arguments.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": arguments.timeline_mark_cycles,
        "HOROVOD_STALL_CHECK_DISABLE": arguments.no_stall_check,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": arguments.stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": arguments.stall_check_shutdown_time_seconds,
        "HOROVOD_NUM_NCCL_STREAMS": arguments.num_nccl_streams,
        "HOROVOD_THREAD_AFFINITY": arguments.thread_affinity,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": arguments.gloo_timeout_seconds,
        "HOROVOD_LOG_LEVEL": arguments.log_level,
        "HOROVOD_LOG_HIDE_TIME": arguments.log_hide_time,
    }
    if arguments.fusion_threshold_mb is not None:
        given["HOROVOD_FUSION_THRESHOLD"] = arguments.fusion_threshold_mb * 1024 * 1024
    return {name: str(value) for name, value in given.items() if value is not None}


def _split_command(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The launcher's own words, and the command with its arguments; one ``--`` between them is dropped.

    `argparse` must not see the command: it would refuse an argument of it that is an ambiguous short form
    of several of our options. A word it cannot make sense of here is left to its error message.
    """
    spellings = parser._option_string_actions
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if not word.startswith("-") or word == "-":
            break
        name, has_value, _ = word.partition("=")
        full = [name] if name in spellings else [full for full in spellings if full.startswith(name)]
        index += 1
        if len(full) == 1 and not has_value:
            values = spellings[full[0]].nargs
            index += values if isinstance(values, int) else 1
    return words[:index], words[index:]


def _add_general(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("general")
    group.add_argument("-h", "--help", action="help", help="show this and exit")
    group.add_argument("-v", "--version", action="store_true", help="show the version and exit")
    group.add_argument(
        "-np",
        "--num-proc",
        metavar="N",
        type=_at_least(1, int),
        help="number of processes to start (required)",
    )
    group.add_argument(
        "-cb", "--check-build", action="store_true", help="show what this installation can do, and exit"
    )
    group.add_argument("--verbose", action="store_true", help="tell on standard error what happens")
    group.add_argument(
        "--start-timeout",
        metavar="SECONDS",
        type=_at_least(1, int),
        help="how long the processes may take to find each other (default: HOROVOD_START_TIMEOUT, else 30)",
    )
    # The reference keeps a cache of its checks of other machines. There is nothing here to keep.
    group.add_argument("--disable-cache", action="store_true", help=argparse.SUPPRESS)
    group.add_argument(
        "--no-autotune", dest="autotune", action="store_const", const=0, help=argparse.SUPPRESS
    )


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_argument_group("hosts (default: N slots on this machine)")
    group = hosts.add_mutually_exclusive_group()
    group.add_argument("-H", "--hosts", metavar="HOSTS", help=HOSTS_FORM)
    group.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="file with a host per line: localhost slots=4"
    )
    parser.add_argument("--gloo", action="store_true", help=argparse.SUPPRESS)  # there is no other yet


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output-filename",
        metavar="DIR",
        help="also write what rank R prints to DIR/rank.R/stdout and DIR/rank.R/stderr",
    )
    group.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="put the local time before every line that a process prints",
    )


def _add_tunables(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--fusion-threshold-mb",
        metavar="MB",
        type=_at_least(0, int),
        help="largest buffer that tensors are combined into, 0: none (default 128)",
    )
    group.add_argument(
        "--cycle-time-ms",
        metavar="MS",
        type=_at_least(0, float),
        help="how long a tensor that nobody waits for may wait for others (default 1)",
    )
    group.add_argument(
        "--cache-capacity", metavar="N", type=_at_least(0, int), help="HOROVOD_CACHE_CAPACITY, 0: no cache"
    )
    for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce"):
        variable = name.replace("-", "_")
        pair = group.add_mutually_exclusive_group()
        pair.add_argument(
            f"--{name}",
            dest=variable,
            action="store_const",
            const=1,
            help=f"HOROVOD_{variable.upper()}=1; with --no-{name}: 0",
        )
        pair.add_argument(
            f"--no-{name}", dest=variable, action="store_const", const=0, help=argparse.SUPPRESS
        )


def _add_timeline(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("timeline")
    group.add_argument(
        "--timeline-filename",
        metavar="FILE",
        help="rank 0 records here when operations were negotiated and run; DYNAMIC: none until "
        "start_timeline() is called",
    )
    pair = group.add_mutually_exclusive_group()
    pair.add_argument(
        "--timeline-mark-cycles",
        action="store_const",
        const=1,
        help="mark in that file when the engine begins to work",
    )
    pair.add_argument(
        "--no-timeline-mark-cycles",
        dest="timeline_mark_cycles",
        action="store_const",
        const=0,
        help=argparse.SUPPRESS,
    )


def _add_stall_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("stall check")
    pair = group.add_mutually_exclusive_group()
    pair.add_argument(
        "--no-stall-check",
        action="store_const",
        const=1,
        help="do not warn about processes that others wait for",
    )
    pair.add_argument(
        "--stall-check", dest="no_stall_check", action="store_const", const=0, help=argparse.SUPPRESS
    )
    group.add_argument(
        "--stall-check-warning-time-seconds",
        metavar="SECONDS",
        type=_at_least(0, int),
        help="warn after this time (default 60)",
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        metavar="SECONDS",
        type=_at_least(0, int),
        help="end the job after this time, 0: never (default 0)",
    )


def _add_libraries(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("libraries")
    group.add_argument(
        "--gloo-timeout-seconds",
        metavar="SECONDS",
        type=_at_least(0, int),
        help="an operation fails after this time without progress (default 30)",
    )
    group.add_argument(
        "--thread-affinity", metavar="CPU", type=_at_least(0, int), help="CPU of the engine's thread"
    )
    group.add_argument(
        "--num-nccl-streams", metavar="N", type=_at_least(0, int), help="HOROVOD_NUM_NCCL_STREAMS (default 1)"
    )
    # This asks for what is the case anyway.
    group.add_argument("--no-mpi-threads-disable", action="store_true", help=argparse.SUPPRESS)


def _add_logging(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logging")
    group.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.upper,
        choices=_LOG_LEVELS,
        help=f"{', '.join(_LOG_LEVELS)} (default WARNING)",
    )
    # A group for the log's time stamps only: hiding them goes together with --prefix-output-with-timestamp.
    times = group.add_mutually_exclusive_group()
    for option, hide, shown in (
        ("--log-without-timestamp", 1, "leave the time out of the log"),
        ("--log-with-timestamp", 0, argparse.SUPPRESS),
        ("--log-hide-timestamp", 1, argparse.SUPPRESS),
        ("--no-log-hide-timestamp", 0, argparse.SUPPRESS),
    ):
        times.add_argument(option, dest="log_hide_time", action=_LogTime, nargs=0, const=hide, help=shown)


def _at_least(minimum: int, kind: type[int] | type[float]) -> Callable[[str], Any]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {number}") from None
        if not minimum <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, not {text}")
        return value

    return convert


def _hosts(arguments: argparse.Namespace) -> tuple[HostSlots, ...]:
    if arguments.hosts is not None:
        return parse_hosts(arguments.hosts)
    if arguments.hostfile is not None:
        try:
            text = Path(arguments.hostfile).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"The host file {arguments.hostfile} cannot be read: {why}.") from error
        return parse_hostfile(text, arguments.hostfile)
    return ()
