"""Every setting that is read from the environment: one field each, with variable, parser, default and
meaning.

The environment is read once, at ``init``. Text that is no number where a number belongs is an error that
names the variable, except for switches: there it means "off", as scripts rely on, and a warning says so.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from horovod.errors import ConfigError

__all__ = ["LOG_LEVELS", "OWN_OPERATIONS", "TIMELINE_DYNAMIC", "Config", "variables"]

_log = logging.getLogger("horovod")

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
"""Names of ``HOROVOD_LOG_LEVEL``; the index is the level of the core."""

TRANSPORT_GROUPS = ("auto", "single", "launcher")

NETWORK_PROTECTIONS = ("auto", "off", "integrity", "full")

TIMELINE_DYNAMIC = "DYNAMIC"
"""Instead of a path: a timeline may be started later, none is recorded before."""

OWN_OPERATIONS = "gloo"
"""``HOROVOD_CPU_OPERATIONS`` for the engine's own transports, as scripts know them."""

Parser = Callable[[str, str], Any]

_NUMBER = r"\s*[+-]?\d{1,4000}"  # Python refuses to read longer ones


def _switch(variable: str, text: str) -> bool:
    number = re.match(_NUMBER, text)
    if number is None or number.group() != text.rstrip():
        _log.warning("%s=%s is not a number: write 1 for on and 0 for off.", variable, text)
    return number is not None and int(number.group()) > 0


def _not_zero(_: str, text: str) -> bool:
    number = re.match(_NUMBER, text)
    return number is not None and int(number.group()) != 0


def _count(variable: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigError(f"{variable}={text} must be a whole number, 0 or more.", variable=variable)
    return number


def _between(least: int, most: int) -> Parser:
    def parse(variable: str, text: str) -> int:
        number = _count(variable, text)
        if not least <= number <= most:
            raise ConfigError(f"{variable}={text} must be between {least} and {most}.", variable=variable)
        return number

    return parse


def _duration(unit_s: float = 1.0) -> Parser:
    def parse(variable: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ConfigError(f"{variable}={text} must be a number, 0 or more.", variable=variable)
        return number * unit_s

    return parse


def _time_limit(variable: str, text: str) -> float:
    limit_s: float = _duration()(variable, text)
    if limit_s == 0:
        raise ConfigError(f"{variable}={text} must be more than 0 seconds.", variable=variable)
    return limit_s


def _log_level(_: str, text: str) -> int:
    name = text.strip().lower()
    return LOG_LEVELS.index(name) if name in LOG_LEVELS else LOG_LEVELS.index("warning")


def _cores(variable: str, text: str) -> tuple[int, ...]:
    return tuple(_count(variable, part) for part in text.split(","))


def _one_of(*choices: str) -> Parser:
    def parse(variable: str, text: str) -> str:
        if text not in choices:
            raise ConfigError(f"{variable}={text} must be one of: {', '.join(choices)}.", variable=variable)
        return text

    return parse


def _text(_: str, text: str) -> str:
    return text


def _controller(variable: str, text: str) -> str:
    return str(_one_of("gloo", "mpi")(variable, text.strip().lower()))


def _operations(variable: str, text: str) -> str:
    name = text.strip()
    if name.lower() in (OWN_OPERATIONS, "mpi"):
        return name.lower()
    if name.lower() == "ccl":
        raise ConfigError(
            f"{variable}={text}: oneCCL is not supported. Leave it out for the transports of Rueda, or use "
            "mpi for a fabric that only MPI drives.",
            variable=variable,
        )
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ConfigError(
            f"{variable}={text} must be gloo, mpi, or module:Class, a backend of yours.", variable=variable
        )
    return name


def _setting(variable: str, parse: Parser, default: Any, doc: str, *, otherwise: str | None = None) -> Any:
    """One field. ``otherwise`` is a second variable, read if the first one is not set."""
    names = (variable,) if otherwise is None else (variable, otherwise)
    return dataclasses.field(default=default, metadata={"variables": names, "parse": parse, "doc": doc})


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one process. ``Config()`` has the defaults; ``from_environ`` reads the environment."""

    fusion_threshold_bytes: int = _setting(
        "HOROVOD_FUSION_THRESHOLD", _count, 128 << 20, "Most bytes that run as one batch; 0 = no fusion."
    )
    cycle_time_s: float = _setting(
        "HOROVOD_CYCLE_TIME",
        _duration(1e-3),
        1e-3,
        "In ms: how long an operation that nobody waits for may rest.",
    )
    disable_group_fusion: bool = _setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        _switch,
        False,
        "Keep the members of a group apart from other tensors.",
    )
    stall_check_disable: bool = _setting(
        "HOROVOD_STALL_CHECK_DISABLE",
        _switch,
        False,
        "Do not watch for operations that some ranks never submit.",
    )
    stall_warning_s: float = _setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _duration(),
        60.0,
        "Warn when an operation waits longer for a rank.",
    )
    stall_shutdown_s: float = _setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _duration(),
        0.0,
        "End the job when one waits longer; 0 = never.",
    )
    operation_timeout_s: float = _setting(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        _time_limit,
        30.0,
        "Longest time without progress of a started operation.",
    )
    init_timeout_s: float = _setting(
        "HOROVOD_START_TIMEOUT",
        _time_limit,
        30.0,
        "How long init() waits for the other ranks.",
        otherwise="HOROVOD_GLOO_TIMEOUT_SECONDS",
    )
    heartbeat_timeout_s: float = _setting(
        "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS",
        _duration(),
        5.0,
        "A rank without any sign of life for so long is lost; 0 = never.",
    )
    heartbeat_warning_s: float = _setting(
        "HOROVOD_HEARTBEAT_WARNING_SECONDS",
        _duration(),
        3.0,
        "Warn when a rank has given no sign of life for so long.",
    )
    log_level: int = _setting(
        "HOROVOD_LOG_LEVEL",
        _log_level,
        LOG_LEVELS.index("warning"),
        "trace, debug, info, warning, error or fatal.",
    )
    log_hide_time: bool = _setting(
        "HOROVOD_LOG_HIDE_TIME", _switch, False, "Leave the time out of log lines."
    )
    direct_copies: bool = _setting(
        "HOROVOD_DIRECT_COPIES",
        _switch,
        True,
        "Ranks of a host may read each other's memory, where the system allows it.",
    )
    controller: str = _setting(
        "HOROVOD_CONTROLLER",
        _controller,
        "gloo",
        "gloo or mpi: where init(comm=[...]) looks its ranks up. Either way Rueda negotiates by itself.",
    )
    cpu_operations: str = _setting(
        "HOROVOD_CPU_OPERATIONS",
        _operations,
        OWN_OPERATIONS,
        "What moves the bytes in host memory: gloo (the transports of Rueda), mpi (mpi4py), or module:Class.",
    )
    mpi_threads_disable: bool = _setting(
        "HOROVOD_MPI_THREADS_DISABLE",
        _switch,
        False,
        "Ask MPI for calls from one thread at a time only.",
    )
    thread_affinity: tuple[int, ...] = _setting(
        "HOROVOD_THREAD_AFFINITY",
        _cores,
        (),
        "Cores for the engine's thread, one for each local rank: 0,4,8.",
    )
    dynamic_process_sets: bool = _setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        _not_zero,
        False,
        "Process sets may be added and removed after init().",
    )
    timeline: str = _setting(
        "HOROVOD_TIMELINE",
        _text,
        "",
        "File for rank 0's timeline; DYNAMIC: none until start_timeline() is called.",
    )
    timeline_mark_cycles: bool = _setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _switch,
        False,
        "Mark in that file when the engine begins to work.",
    )
    elastic: bool = _setting("HOROVOD_ELASTIC", _switch, False, "Set by the launcher: the world may change.")
    network_interface: str = _setting(
        "HOROVOD_GLOO_IFACE",
        _text,
        "",
        "Interfaces or subnets for data between hosts (eth1,10.1.0.0/16); by default those that work.",
    )
    network_streams: int = _setting(
        "HOROVOD_NETWORK_STREAMS",
        _between(1, 16),
        1,
        "Connections that share the data between two ranks of different hosts; the same for every rank.",
    )
    network_protection: str = _setting(
        "HOROVOD_NETWORK_PROTECTION",
        _one_of(*NETWORK_PROTECTIONS),
        "auto",
        "What ranks say to each other over the network: off, integrity (cannot be changed on the way), full "
        "(nor read), or auto (integrity between hosts); the same for every rank.",
    )
    transport_groups: str = _setting(
        "HOROVOD_TRANSPORT_GROUPS",
        _one_of(*TRANSPORT_GROUPS),
        "auto",
        "Who shares memory: auto (who can), launcher (only on one of its hosts), single (nobody; for tests).",
    )
    overlap_gradients: str = _setting(
        "HOROVOD_OVERLAP_GRADIENTS",
        _one_of("auto", "1", "0"),
        "auto",
        "Whether DistributedOptimizer exchanges gradients while backward still computes: auto (unless the "
        "ranks share memory and leave no core idle), 1 (yes), 0 (only when it has ended).",
    )
    shared_gradients: str = _setting(
        "HOROVOD_SHARED_GRADIENTS",
        _one_of("0", "auto", "1"),
        "0",
        "PyTorch gradients in memory that the ranks of a host share: 0 (none), auto (those that keep their "
        "memory from step to step), 1 (all, by a copy where needed). The results are the same. Views of a "
        "gradient that were taken before it is moved no longer see it.",
    )
    job_id: str = _setting(
        "HOROVOD_JOB_ID", _text, "", "Set by the launcher: random text, the same in all ranks."
    )
    epoch: str = _setting(
        "HOROVOD_EPOCH", _text, "0", "Set by the launcher of elastic runs: the current round."
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Read all settings. An empty variable counts as not set.

        Raises:
            ConfigError: a value makes no sense; ``variable`` names where.
        """
        given: dict[str, Any] = {}
        followed = set()
        for field in dataclasses.fields(cls):
            for variable in field.metadata["variables"]:
                if text := environ.get(variable, ""):
                    given[field.name] = field.metadata["parse"](variable, text)
                    if variable != field.metadata["variables"][0]:
                        followed.add(field.name)
                    break
        config = _in_order(cls(**given), given.keys() - followed)
        if 0 < config.stall_shutdown_s < config.stall_warning_s and not config.stall_check_disable:
            _log.warning(
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=%g is ignored: it must not be below "
                "HOROVOD_STALL_CHECK_TIME_SECONDS=%g.",
                config.stall_shutdown_s,
                config.stall_warning_s,
            )
            config = dataclasses.replace(config, stall_shutdown_s=0.0)
        return config


SHORTEST_HEARTBEAT_TIMEOUT_S = 3.0
"""Less would take what a loaded machine or a lossy network does for a death."""


def _in_order(config: Config, given: Set[str]) -> Config:
    """Deadlines that make sense together: a silent rank is found before an operation gives up on it, and that
    before ``init`` gives up. What nobody set follows what was set; what contradicts itself is corrected.

    Args:
        config: as read.
        given: fields that were set for themselves.
    """
    lost, stuck, init = config.heartbeat_timeout_s, config.operation_timeout_s, config.init_timeout_s
    if 0 < lost < SHORTEST_HEARTBEAT_TIMEOUT_S:
        _log.warning(
            "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS=%g: %g s count: with less, a busy machine looks dead.",
            lost,
            SHORTEST_HEARTBEAT_TIMEOUT_S,
        )
        lost = SHORTEST_HEARTBEAT_TIMEOUT_S
    if init < stuck and "operation_timeout_s" not in given:
        stuck = max(init, lost + 1)
    if "heartbeat_timeout_s" in given and "operation_timeout_s" not in given:
        stuck = max(stuck, 1.5 * lost)
    if stuck <= lost:
        shorter = max(stuck / 2, SHORTEST_HEARTBEAT_TIMEOUT_S)
        if "heartbeat_timeout_s" in given and shorter < lost:
            _log.warning(
                "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS=%g is not below HOROVOD_GLOO_TIMEOUT_SECONDS=%g: "
                "%g s count, so that a silent rank is named.",
                lost,
                stuck,
                shorter,
            )
        lost = min(lost, shorter)
    if stuck <= lost:
        _log.warning(
            "HOROVOD_GLOO_TIMEOUT_SECONDS=%g is too short to find out who is silent: %g s count.",
            stuck,
            lost + 1,
        )
        stuck = lost + 1
    if init < stuck and "operation_timeout_s" in given and "init_timeout_s" in given:
        _log.warning(
            "HOROVOD_START_TIMEOUT=%g is below HOROVOD_GLOO_TIMEOUT_SECONDS=%g: %g s count.",
            init,
            stuck,
            stuck,
        )
    if "operation_timeout_s" in given or "init_timeout_s" not in given:
        init = max(init, stuck)
    warning = config.heartbeat_warning_s
    if lost > 0 and warning >= lost:
        if "heartbeat_warning_s" in given:
            _log.warning(
                "HOROVOD_HEARTBEAT_WARNING_SECONDS=%g is not below HOROVOD_HEARTBEAT_TIMEOUT_SECONDS=%g: "
                "%g s count.",
                warning,
                lost,
                lost / 2,
            )
        warning = lost / 2
    return dataclasses.replace(
        config,
        heartbeat_timeout_s=lost,
        heartbeat_warning_s=warning,
        operation_timeout_s=stuck,
        init_timeout_s=init,
    )


def variables() -> dict[str, str]:
    """Environment variable -> what it means, for help texts and documentation."""
    return {field.metadata["variables"][0]: field.metadata["doc"] for field in dataclasses.fields(Config)}
