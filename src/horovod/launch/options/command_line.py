"""The command line of ``horovodrun``: reading it, and the job it asks for.

Which options exist is in `table`. Most only become an environment variable of the workers; an option that is
not given leaves an inherited variable alone.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job, SshOptions
from horovod.launch.contracts.registry import LAUNCHERS
from horovod.launch.options import foreign
from horovod.launch.options.table import AUTO, TABLE, Option, every_option, spellings
from horovod.launch.phrases import counted
from horovod.launch.placement.addresses import names_of_this_machine
from horovod.launch.placement.host_files import host_text
from horovod.launch.placement.hosts import (
    Allocated,
    HostSlots,
    named,
    parse_hostfile,
    parse_hosts,
    too_few_slots,
)

__all__ = [
    "hosts_are_named",
    "is_elastic",
    "make_parser",
    "option_environment",
    "parse_command_line",
    "rank_map",
    "to_job",
]

_LONG_DASHES = ("\u2012", "\u2013", "\u2014", "\u2212")
_USAGE = "horovodrun [-np N] [options] command [arguments]"

_DESCRIPTION = "Start N processes of a program that train together, and look after them."

_EPILOG = """\
examples:
  horovodrun -np 4 python train.py               four processes on this machine
  horovodrun python train.py                     one for each GPU here, else each core;
                                                 in a Slurm, PBS, LSF or SGE job or an
                                                 MPIJob pod: on all that was allocated
  horovodrun -np 8 -H server1:4,server2:4 python train.py --epochs 3
  horovodrun -H gpu[01-16]:8 python train.py     128 processes on 16 hosts
  horovodrun --hostfile hosts --network-interfaces eth1 python train.py
  horovodrun -np 8 --launcher srun python train.py
  horovodrun --config-file job.yaml --verbose python train.py
  horovodrun -np 8 --output-filename logs --show-ranks 0 python train.py
  horovodrun -np 4 --min-np 2 --host-discovery-script ./hosts.sh python train.py
                                                 elastic: hosts come and go
  horovodrun --check-build                       what this installation can do
  eval "$(horovodrun --completion bash)"         complete options in this shell

Everything after the command belongs to the command. Options may be shortened
as long as they stay unambiguous. Every option may stand in the config file.

exit status: 0 if every process succeeded, otherwise that of the first process
that failed (128 + N if signal N ended it, or told horovodrun to end); 127
command not found, 126 not executable, 2 wrong arguments, 1 anything else.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"horovodrun: {message}\nusage: {_USAGE}\n`horovodrun --help` lists the options.\n")


class _Give(argparse.Action):
    """Notes that an option was given, with its value."""

    def __init__(self, *, option: Option, **further: Any) -> None:
        super().__init__(**further)
        self._option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        option = self._option
        spelling = option_string or option.longest
        if option.name == "help":
            parser.print_help()
            parser.exit()
        for before, other in namespace.given:
            if option.apart and other.apart == option.apart and other != option:
                parser.error(f"argument {spelling}: not allowed with argument {before}")
        if option.warning:
            warnings.warn(f"{spelling} is deprecated: {option.warning}", DeprecationWarning, stacklevel=2)
        namespace.given.append((spelling, option))
        option.give(namespace, option.value if option.is_switch else values)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,  # `_split_command` expands them
    )
    for title, options in TABLE.items():
        group = parser.add_argument_group(title)
        for option in options:
            group.add_argument(
                *option.spellings,
                dest=option.name,
                action=_Give,
                option=option,
                type=_reader(option),
                nargs=0 if option.is_switch else None if option.values == 1 else option.values,
                metavar=option.metavar or None,
                help=option.help or argparse.SUPPRESS,
            )
    return parser


def parse_command_line(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line and the config file it names. Wrong usage ends the process with status 2, as
    ``--help`` does with 0.

    Returns:
        The value of every option by its name, None if not given; ``command``; ``given``, the options in
        order; ``notices``, what the user should be told about the file.

    Raises:
        ConfigError: an option that this version does not serve, or the config file cannot be used.
    """
    parser = make_parser()
    options, command = _split_command(parser, words)
    arguments, unknown = parser.parse_known_args(
        options, argparse.Namespace(command=list(command), given=[], notices=[])
    )
    if unknown:
        parser.error(f"unknown option {unknown[0]}{_did_you_mean(unknown[0])}")
    if arguments.resume is not None and (arguments.command or len(arguments.given) > 1):
        parser.error("--resume takes the command and all options from the file: give nothing else")
    if not (arguments.version or arguments.check_build or arguments.completion or arguments.resume):
        if arguments.config_file is not None:
            # Only who has such a file pays for the module.
            from horovod.launch.options.config_file import apply_config_file

            apply_config_file(arguments, Path(arguments.config_file))
        if not arguments.command:
            parser.error("the command to run is missing")
        if not arguments.command[0]:
            parser.error("the command to run is an empty word. Is a variable of the shell empty?")
        if arguments.command[0].startswith(_LONG_DASHES):
            word = arguments.command[0]
            parser.error(
                f"{word} begins with a long dash, as pages and word processors write it. Write "
                f"-{word[1:]} or --{word[1:]}"
            )
        if (behind := _behind_the_command(arguments)) is not None:
            arguments.notices.append(behind)
    return arguments


def _behind_the_command(arguments: argparse.Namespace) -> str | None:
    """Return the advice for a number of processes that stands behind the command; None: there is none."""
    words = arguments.command
    if arguments.num_proc is not None:
        return None
    for index, word in enumerate(words[1:], start=1):
        name, equals, value = word.partition("=")
        value = value if equals else next(iter(words[index + 1 : index + 2]), "")
        if name in ("-np", "--num-proc") and value.isdecimal():
            return (
                f"{name} {value} stands behind the command and goes to it. If horovodrun is to start {value} "
                f"processes: horovodrun -np {value} {words[0]} ..."
            )
    return None


def hosts_are_named(arguments: argparse.Namespace) -> bool:
    """True if the user has said which hosts to use."""
    return (
        arguments.hosts is not None
        or arguments.hostfile is not None
        or arguments.host_discovery_script is not None
    )


def is_elastic(arguments: argparse.Namespace) -> bool:
    """True if hosts may come and go."""
    return arguments.host_discovery_script is not None or arguments.min_num_proc is not None


def to_job(arguments: argparse.Namespace, allocated: Allocated | None = None) -> Job:
    """Make the job that the parsed command line asks for; `allocated` counts if it names no hosts. If nobody
    has said how many processes, the number that fits this machine becomes one of ``arguments.notices``.

    Raises:
        ConfigError: hosts cannot be read, or there is no number of processes.
        LaunchError: the host file cannot be read.
    """
    hosts = _hosts(arguments) or (allocated.hosts if allocated is not None else ())
    meant = allocated.processes if allocated is not None and not hosts_are_named(arguments) else 0
    given = None if arguments.num_proc == AUTO else arguments.num_proc
    if is_elastic(arguments):
        given = given or arguments.min_num_proc  # as many as training may go on with
    processes = given or meant or sum(host.slots for host in hosts)
    if not processes and hosts:
        raise ConfigError(
            "The hosts have no slots: how many processes? Give some of them slots, as in -H server1:4."
        )
    if not processes:
        processes = _processes_here(arguments)
    if allocated is not None and hosts == allocated.hosts and not is_elastic(arguments):
        _check_room(allocated, processes)
    interfaces = [name for names in arguments.network_interfaces or () for name in names]
    return Job(
        command=tuple(arguments.command),
        processes=processes,
        hosts=hosts,
        arguments=arguments.mpi_args or (),
        binding=arguments.binding_args,
        tcp=bool(arguments.tcp),
        options=option_environment(arguments),
        timestamps=bool(arguments.prefix_output_with_timestamp),
        output_directory=Path(arguments.output_filename) if arguments.output_filename else None,
        shown=_shown_ranks(arguments.show_ranks, processes),
        ssh=SshOptions(
            port=arguments.ssh_port,
            identity_file=arguments.ssh_identity_file,
            arguments=arguments.ssh_args or (),
        ),
        interfaces=tuple(dict.fromkeys(interfaces)),
        status=arguments.status,
    )


def rank_map(job: Job) -> str:
    """A table of where each rank of `job` would run.

    Raises:
        ConfigError: there are fewer slots than processes.
    """
    rows = [("rank", "host", "local rank", "cross rank")]
    for slot in job.place():
        local = f"{slot.local_rank} of {slot.local_size}"
        rows.append((str(slot.rank), slot.hostname, local, f"{slot.cross_rank} of {slot.cross_size}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def option_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the given options stand for; options not given are absent."""
    environment = {}
    for option in every_option():
        value = getattr(arguments, option.name)
        needed = not option.needs or getattr(arguments, option.needs)
        if option.variable and value is not None and needed:
            environment[option.variable] = option.as_text(value)
    return environment


def _reader(option: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return option.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _split_command(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The launcher's own words, in full, and the command with its arguments; one ``--`` between is dropped.

    The parser must not see the command: it would take words of it for ours.
    """
    known = spellings()
    own: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return own, words[index + 1 :]
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=")
        if name not in known and (what := foreign.ours(name)):
            parser.error(f"unknown option {name}. {what}")
        full = _full_spelling(parser, name, known)
        if full is None and (what := foreign.answer(name)):
            parser.error(f"unknown option {name}{what}")
        index += 1
        own.append(f"{full}{equals}{value}" if full else word)
        if full and not equals and not known[full].is_switch:
            own += words[index : index + known[full].values]
            index += known[full].values
    return own, words[index:]


def _full_spelling(parser: argparse.ArgumentParser, name: str, known: Mapping[str, Option]) -> str | None:
    """The option that `name` is or abbreviates, None if there is none."""
    if name in known:
        return name
    found = [full for full in known if full.startswith(name) and len(name) > 2]
    # What abbreviates an option of old goes on to do so, whatever we have added.
    found = [full for full in found if not known[full].ours] or found
    if len({(known[full].name, known[full].value) for full in found}) > 1:
        parser.error(f"ambiguous option: {name} could match {', '.join(found)}")
    return found[0] if found else None


def _did_you_mean(word: str) -> str:
    name = word.partition("=")[0]
    shown = [full for full, option in spellings().items() if option.help]
    import difflib  # only who is mistaken pays for it

    close = difflib.get_close_matches(name, shown, n=2, cutoff=0.6)
    close += [
        full for full in shown if re.sub("-|_", "", full) == re.sub("-|_", "", name) and full not in close
    ]
    return f". Did you mean {' or '.join(close)}?" if close else ""


def _processes_here(arguments: argparse.Namespace) -> int:
    """Number of processes that fit this machine, if the ranks will be on it."""
    if arguments.launcher is not None and not LAUNCHERS[arguments.launcher].stays_here:
        raise ConfigError(
            f"-np is missing: how many processes? {arguments.launcher} may start them on other machines, of "
            "which nothing is known here."
        )
    from horovod.launch.placement.machine import room_here  # only who gives no number pays for it

    room = room_here(os.environ)
    arguments.notices.append(
        f"{counted(room.processes, 'process', 'processes')} on this machine: {room.why} (-np N decides)"
    )
    return room.processes


def _check_room(allocated: Allocated, processes: int) -> None:
    """
    Raises:
        ConfigError: the allocation has fewer slots. Its nodes may have cores enough: Slurm counts tasks.
    """
    slots = sum(host.slots for host in allocated.hosts)
    if processes <= slots:
        return
    share = -(-processes // len(allocated.hosts))
    names = [host.name for host in allocated.hosts]
    if len(names) == 1 and names_of_this_machine(names):
        names = ["localhost"]
    wanted = named(HostSlots(name, share) for name in names)
    tasks = f" (sbatch, salloc or srun: --ntasks={processes})" if allocated.slurm_job else ""
    raise ConfigError(
        f"{too_few_slots(processes, slots)} of {allocated.source} ({named(allocated.hosts)}). Ask it for "
        f"more{tasks}; or, if their cores are enough, say how many each is to run: -H {wanted}"
    )


def _hosts(arguments: argparse.Namespace) -> tuple[HostSlots, ...]:
    if arguments.hosts is not None:
        return parse_hosts(arguments.hosts)
    if arguments.hostfile is not None:
        return parse_hostfile(host_text(arguments.hostfile), arguments.hostfile)
    return ()


def _shown_ranks(ranges: Sequence[range] | None, processes: int) -> frozenset[int] | None:
    """The ranks whose output is shown; None: all."""
    if ranges is None:
        return None
    last = max(ranks[-1] for ranks in ranges)
    if last >= processes:
        raise ConfigError(f"--show-ranks names rank {last}, but the last of {processes} is {processes - 1}.")
    return frozenset(rank for ranks in ranges for rank in ranks)
