"""The command line of ``horovodrun``, read once: its words, and the config file they name, become options.

Which options exist is in `table`. An option that is not given leaves an inherited variable alone.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from horovod.launch.options import foreign
from horovod.launch.options.table import TABLE, Option, spellings
from horovod.launch.options.values import Given, LaunchOptions, typed

__all__ = ["parse_command_line"]

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

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def parse_command_line(words: Sequence[str]) -> LaunchOptions:
    """Read the command line and the config file it names. Wrong usage ends the process with status 2, as
    ``--help`` does with 0.

    Raises:
        ConfigError: an option that this version does not serve, or the config file cannot be used.
    """
    known, given, unknown = spellings(), Given(), ""
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-") or word == "-":
            break
        index += 1
        if word == "--":
            break
        spelling, joined = _spelling(word, known)
        if spelling is None:
            unknown = unknown or word
            continue
        option = known[spelling]
        if joined is not None:
            texts: Sequence[str] = [joined]
        else:
            texts = words[index : index + (0 if option.is_switch else option.values)]
            index += len(texts)
        _give(given, spelling, option, texts, joined is not None)
    if unknown:
        _refuse(f"unknown option {unknown}{_did_you_mean(unknown)}")
    given.command = tuple(words[index:])
    if "resume" in given and (given.command or len(given.order) > 1):
        _refuse("--resume takes the command and all options from the file: give nothing else")
    if not any(name in given for name in ("version", "check_build", "completion", "resume")):
        if (path := given.get("config_file", str)) is not None:
            # Only who has such a file pays for the module.
            from horovod.launch.options.config_file import add_config_file

            add_config_file(given, Path(path))
        _check_command(given)
    return typed(given)


def _spelling(word: str, known: Mapping[str, Option]) -> tuple[str | None, str | None]:
    """The option that a word is or abbreviates, None if there is none; and the value in the same word."""
    name, equals, value = word.partition("=")
    if name in known:
        return name, value if equals else None
    if what := foreign.ours(name):
        _refuse(f"unknown option {name}. {what}")
    found = [full for full in known if full.startswith(name) and len(name) > 2]
    # What abbreviates an option of old goes on to do so, whatever we have added.
    found = [full for full in found if not known[full].ours] or found
    if len({(known[full].name, known[full].value) for full in found}) > 1:
        _refuse(f"ambiguous option: {name} could match {', '.join(found)}")
    if found:
        return found[0], value if equals else None
    if what := foreign.answer(name):
        _refuse(f"unknown option {name}{what}")
    short = word[:2]  # as in -p22
    return (short, word[2:]) if short in known else (None, None)


def _give(given: Given, spelling: str, option: Option, texts: Sequence[str], is_joined: bool) -> None:
    """Note that an option was given, with its value."""
    if option.name == "help":
        print(_help(), end="")
        sys.exit(0)
    argument = f"argument {'/'.join(option.spellings)}"
    expected = 0 if option.is_switch else option.values
    if len(texts) < expected or (not is_joined and any(map(_is_like_an_option, texts))):
        _refuse(f"{argument}: expected {'one argument' if expected == 1 else f'{expected} arguments'}")
    if len(texts) > expected:
        _refuse(f"{argument}: ignored explicit argument {texts[0]!r}")
    try:
        values = [option.read(text) for text in texts]
    except ValueError as error:
        _refuse(f"{argument}: {error}")
    for before, other in given.order:
        if option.apart and other.apart == option.apart and other != option:
            _refuse(f"argument {spelling}: not allowed with argument {before}")
    if option.warning:
        warnings.warn(f"{spelling} is deprecated: {option.warning}", DeprecationWarning, stacklevel=2)
    given.order.append((spelling, option))
    given.give(option, option.value if option.is_switch else values if option.values > 1 else values[0])


def _is_like_an_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and " " not in word and not _NEGATIVE_NUMBER.fullmatch(word)


def _check_command(given: Given) -> None:
    """Refuse what cannot be a command, and note what should not be in one."""
    if not given.command:
        _refuse("the command to run is missing")
    word = given.command[0]
    if not word:
        _refuse("the command to run is an empty word. Is a variable of the shell empty?")
    if word.startswith(_LONG_DASHES):
        _refuse(
            f"{word} begins with a long dash, as pages and word processors write it. Write "
            f"-{word[1:]} or --{word[1:]}"
        )
    if "num_proc" in given:
        return
    words = given.command
    for index, word in enumerate(words[1:], start=1):
        name, equals, value = word.partition("=")
        value = value if equals else next(iter(words[index + 1 : index + 2]), "")
        if name in ("-np", "--num-proc") and value.isdecimal():
            given.notices.append(
                f"{name} {value} stands behind the command and goes to it. If horovodrun is to start {value} "
                f"processes: horovodrun -np {value} {words[0]} ..."
            )
            return


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"horovodrun: {message}\nusage: {_USAGE}\n`horovodrun --help` lists the options.\n")
    sys.exit(2)


def _help() -> str:
    """The usage, all options by groups, and examples, as wide as the terminal."""
    import argparse  # only who asks pays for it

    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    for title, options in TABLE.items():
        group = parser.add_argument_group(title)
        for option in options:
            takes: dict[str, Any] = {"action": "store_true"}
            if not option.is_switch:
                takes = {"nargs": None if option.values == 1 else option.values, "metavar": option.metavar}
            group.add_argument(*option.spellings, help=option.help or argparse.SUPPRESS, **takes)
    return parser.format_help()


def _did_you_mean(word: str) -> str:
    name = word.partition("=")[0]
    shown = [full for full, option in spellings().items() if option.help]
    import difflib  # only who is mistaken pays for it

    close = difflib.get_close_matches(name, shown, n=2, cutoff=0.6)
    close += [
        full for full in shown if re.sub("-|_", "", full) == re.sub("-|_", "", name) and full not in close
    ]
    return f". Did you mean {' or '.join(close)}?" if close else ""
