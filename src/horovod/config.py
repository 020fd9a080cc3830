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
from typing import Any, NamedTuple

from horovod.errors import ConfigError

__all__ = [
    "LOG_LEVELS",
    "OWN_OPERATIONS",
    "SETTINGS",
    "TIMELINE_DYNAMIC",
    "WARNING_LEVEL",
    "Config",
    "Flag",
    "Read",
    "Setting",
    "at_least",
    "is_log_level",
    "one_of",
    "value_of",
]

_log = logging.getLogger("horovod")

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")  # the index is the level of the core

WARNING_LEVEL = LOG_LEVELS.index("WARNING")

TIMELINE_DYNAMIC = "DYNAMIC"
"""Instead of a path: a timeline may be started later, none is recorded before."""

OWN_OPERATIONS = "gloo"
"""``HOROVOD_CPU_OPERATIONS`` for the engine's own transports, as scripts know them."""

Read = Callable[[str], Any]
"""Makes a value of text. ValueError says what is wrong with the text."""

_NUMBER = r"\s*[+-]?\d{1,4000}"  # Python refuses to read longer ones


class Flag(NamedTuple):
    """Offer of a setting by ``horovodrun``: the option, its line in ``--help``, its variable and its key in
    config files are made from this and the setting.

    Attributes:
        spelling: as written on the command line.
        group: the title in ``--help`` under which it stands.
        metavar: stands for its value in ``--help``; empty: a switch, which sets 1.
        key: its place ``section.key`` in a config file, beside the spelling.
        off: the switch that sets 0, and ``off_key`` its place.
        implied: what ``off_key`` is if its section does not say.
        read: makes the value of its text, if it is not the text of the variable.
        unit: how many of the variable's units one of its own is.
        choices: what it may be, for completion.
        path: what kind of path it takes, for completion: ``file`` or ``directory``.
        ours: not an option of the reference; gives way when an abbreviation could mean either.
    """

    spelling: str
    group: str
    metavar: str = ""
    key: str = ""
    off: str = ""
    off_key: str = ""
    implied: bool | None = None
    read: Read | None = None
    unit: int = 1
    choices: tuple[str, ...] = ()
    path: str = ""
    ours: bool = False


class Setting(NamedTuple):
    """Description of one field of :class:`Config`.

    Attributes:
        variables: where it is read from; the first that is set counts.
        parse: makes the value of the variable's text.
        default: text that stands for the value if nothing is set.
        doc: what it means; the first sentence is also the option's help.
        engine: the engine has a setting of the same name.
        flag: its option of ``horovodrun``, if it has one.
    """

    variables: tuple[str, ...]
    parse: Read
    default: str
    doc: str
    engine: bool = False
    flag: Flag | None = None


def at_least(
    minimum: float, kind: type[int] | type[float] = int, at_most: float = math.inf, *, unit: float = 1
) -> Read:
    """Reads a number that is finite and within these; ``unit``: what it is multiplied by."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise ValueError(f"{text!r} is not {number}") from None
        if not minimum <= value < math.inf:
            raise ValueError(f"must be at least {minimum}, not {text}")
        if value > at_most:
            raise ValueError(f"must be at most {at_most}, not {text}")
        return value if unit == 1 else value * unit

    return read


def one_of(*choices: str, fold: Callable[[str], str] = str) -> Read:
    """Reads one of these, once folded."""

    def read(text: str) -> str:
        if fold(text) not in choices:
            raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(choices)})")
        return fold(text)

    return read


_DEVICE_OPERATIONS = ("NCCL", "STAGED", "PEER", "MPI")

_COUNT = at_least(0)
_DURATION = at_least(0, float)


def _folded(text: str) -> str:
    return text.strip().lower()


def _time_limit(text: str) -> float:
    limit_s: float = _DURATION(text)
    if limit_s == 0:
        raise ValueError("must be more than 0 seconds")
    return limit_s


def _switch(text: str) -> bool:
    number = re.match(_NUMBER, text)
    return number is not None and int(number.group()) > 0


def _not_zero(text: str) -> bool:
    number = re.match(_NUMBER, text)
    return number is not None and int(number.group()) != 0


def is_log_level(text: str) -> bool:
    """Return whether this names a level; anything else means warning."""
    return text.strip().upper() in LOG_LEVELS


def _log_level(text: str) -> int:
    return LOG_LEVELS.index(text.strip().upper() if is_log_level(text) else "WARNING")


def _cores(text: str) -> tuple[int, ...]:
    return tuple(_COUNT(part) for part in text.split(",")) if text else ()


def _operations(text: str) -> str:
    name = text.strip()
    if name.lower() in (OWN_OPERATIONS, "mpi"):
        return name.lower()
    if name.lower() == "ccl":
        raise ValueError(
            "oneCCL is not supported; leave it out for the transports of Farandole, or use mpi for a fabric "
            "that only MPI drives"
        )
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ValueError(f"{name!r} is not gloo, mpi, or module:Class, a backend of yours")
    return name


def _device_operations(text: str) -> str:
    name = text.strip().upper()
    if name and name not in _DEVICE_OPERATIONS:
        raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(_DEVICE_OPERATIONS)})")
    return name


def _streams(text: str) -> int:
    streams: int = at_least(-math.inf)(text)
    return max(streams, 1)


def _setting(
    variable: str,
    parse: Read,
    default: str,
    doc: str,
    *,
    otherwise: str = "",
    engine: bool = False,
    flag: Flag | None = None,
) -> Any:
    """One field. ``otherwise`` is a second variable, read if the first one is not set."""
    variables = (variable, otherwise) if otherwise else (variable,)
    setting = Setting(variables, parse, default, doc, engine, flag)
    return dataclasses.field(default=parse(default), metadata={"setting": setting})


def _of_device(variable: str, collective: str) -> Any:
    """The way of one collective in device memory; that of all counts where it is not set."""
    doc = f"The same for {collective} alone. If it is not set, `HOROVOD_GPU_OPERATIONS` counts."
    return _setting(variable, _device_operations, "", doc, otherwise="HOROVOD_GPU_OPERATIONS", engine=True)


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one process. ``Config()`` has the defaults; ``from_environ`` reads the environment."""

    fusion_threshold_bytes: int = _setting(
        "HOROVOD_FUSION_THRESHOLD",
        at_least(0),
        "134217728",
        "Most bytes that run as one batch, 0: none. Rounded up to a multiple of 512 times the local size "
        "where all hosts have the same number of ranks.",
        engine=True,
        flag=Flag(
            "--fusion-threshold-mb", "tuning", "MB", "params.fusion_threshold_mb", read=_COUNT, unit=1 << 20
        ),
    )
    cycle_time_s: float = _setting(
        "HOROVOD_CYCLE_TIME",
        at_least(0, float, unit=1e-3),
        "1",
        "How long an operation that nobody waits for may rest, in ms.",
        engine=True,
        flag=Flag("--cycle-time-ms", "tuning", "MS", "params.cycle_time_ms", read=_DURATION),
    )
    cache_capacity: int = _setting(
        "HOROVOD_CACHE_CAPACITY",
        _COUNT,
        "16384",
        "Capacity of the response cache, in names and in descriptions of operations, 0: no cache. "
        "That of rank 0 counts for all.",
        engine=True,
        flag=Flag("--cache-capacity", "tuning", "N", "params.cache_capacity"),
    )
    disable_group_fusion: bool = _setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        _switch,
        "0",
        "Keep the members of a group apart from other tensors.",
        engine=True,
    )
    stall_check_disable: bool = _setting(
        "HOROVOD_STALL_CHECK_DISABLE",
        _switch,
        "0",
        "Do not watch for operations that some ranks never submit. A proven deadlock stays an error.",
        flag=Flag(
            "--no-stall-check",
            "stall check",
            off="--stall-check",
            off_key="stall_check.enabled",
            implied=True,
        ),
    )
    stall_warning_s: float = _setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _DURATION,
        "60",
        "Warn when an operation waits longer for a rank.",
        engine=True,
        flag=Flag(
            "--stall-check-warning-time-seconds", "stall check", "SECONDS", "stall_check.warning_time_seconds"
        ),
    )
    stall_shutdown_s: float = _setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _DURATION,
        "0",
        "End the job when one waits longer, 0: never. Ignored, with a warning, below the time of the check.",
        engine=True,
        flag=Flag(
            "--stall-check-shutdown-time-seconds",
            "stall check",
            "SECONDS",
            "stall_check.shutdown_time_seconds",
        ),
    )
    operation_timeout_s: float = _setting(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        _time_limit,
        "30",
        "Longest time without progress of a started operation.",
        engine=True,
        flag=Flag("--gloo-timeout-seconds", "libraries", "SECONDS", "library_options.gloo_timeout_seconds"),
    )
    init_timeout_s: float = _setting(
        "HOROVOD_START_TIMEOUT",
        _time_limit,
        "30",
        "How many seconds the ranks may take to find each other in init(). If it is not set, "
        "`HOROVOD_GLOO_TIMEOUT_SECONDS` counts.",
        otherwise="HOROVOD_GLOO_TIMEOUT_SECONDS",
        flag=Flag("--start-timeout", "general", "SECONDS"),
    )
    failure_patience_s: float = _setting(
        "HOROVOD_FAILURE_PATIENCE_SECONDS",
        _DURATION,
        "1",
        "How many seconds ranks may take to notice that another one has failed, and to end by themselves. "
        "For `horovodrun`.",
        flag=Flag("--failure-patience", "general", "SECONDS", ours=True),
    )
    elastic_timeout_s: float = _setting(
        "HOROVOD_ELASTIC_TIMEOUT",
        _DURATION,
        "600",
        "After how many seconds without enough slots an elastic job gives up, at its start and after each "
        "change of its hosts. For `horovodrun`.",
        flag=Flag("--elastic-timeout", "elastic", "SECONDS", read=at_least(0)),
    )
    preemption_notice: str = _setting(
        "HOROVOD_PREEMPTION_NOTICE",
        str,
        "",
        "A file or a URL (http://…) that tells that this host will be taken away: elastic jobs go on without "
        "it from the next commit on. The metadata services of clouds are understood.",
        flag=Flag("--preemption-notice", "elastic", "WHERE", path="file", ours=True),
    )
    heartbeat_timeout_s: float = _setting(
        "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS",
        _DURATION,
        "5",
        "A rank without any sign of life for so long is lost, 0: never. 3 at least, and always below the "
        "limit of operations: [failures](failures.md#time-limits).",
        engine=True,
    )
    heartbeat_warning_s: float = _setting(
        "HOROVOD_HEARTBEAT_WARNING_SECONDS",
        _DURATION,
        "3",
        "Warn when a rank has given no sign of life for so long.",
        engine=True,
    )
    log_level: int = _setting(
        "HOROVOD_LOG_LEVEL",
        _log_level,
        "warning",
        "trace, debug, info, warning, error or fatal.",
        engine=True,
        flag=Flag(
            "--log-level",
            "logging",
            "LEVEL",
            "logging.level",
            read=one_of(*LOG_LEVELS, fold=str.upper),
            choices=LOG_LEVELS,
        ),
    )
    log_hide_time: bool = _setting(
        "HOROVOD_LOG_HIDE_TIME",
        _switch,
        "0",
        "Leave the time out of log lines.",
        engine=True,
        flag=Flag(
            "--log-without-timestamp", "logging", off="--log-with-timestamp", off_key="logging.with_timestamp"
        ),
    )
    direct_copies: bool = _setting(
        "HOROVOD_DIRECT_COPIES",
        _switch,
        "1",
        "Ranks of a host may read each other's memory, where the system allows it: [decision "
        "22](decisions/0022-reading-the-memory-of-peers.md). 0 on one rank keeps all of its host to "
        "slots in shared memory.",
        engine=True,
    )
    device_per_rank: bool = _setting(
        "HOROVOD_DEVICE_PER_RANK",
        _switch,
        "0",
        "Each rank sees one device of its host only, as device 0: for scripts that choose none. Those that "
        "choose the device of their local rank do without. For `horovodrun`: [GPUs](gpus.md#pin-a-rank).",
        flag=Flag("--device-per-rank", "general", off="--no-device-per-rank", ours=True),
    )
    controller: str = _setting(
        "HOROVOD_CONTROLLER",
        one_of("gloo", "mpi", fold=_folded),
        "gloo",
        "gloo or mpi: where `init(comm=[...])` looks its ranks up. Either way Farandole negotiates by "
        "itself. `horovodrun` sets gloo.",
    )
    cpu_operations: str = _setting(
        "HOROVOD_CPU_OPERATIONS",
        _operations,
        "gloo",
        "What moves the bytes in host memory: gloo (the transports of Farandole), mpi (mpi4py), or "
        "`module:Class`, a [backend in Python](howto/write-a-backend-in-python.md). The same on every "
        "rank. ccl is refused.",
    )
    gpu_operations: str = _setting(
        "HOROVOD_GPU_OPERATIONS",
        _device_operations,
        "",
        "What moves tensors in device memory: NCCL, STAGED (through pinned host memory), PEER or MPI, in any "
        "letter case; by default NCCL if it is there, else STAGED. PEER: ranks of one host copy from each "
        "other's device memory in allgather, broadcast and alltoall; the rest is staged: "
        "[GPUs](gpus.md#copies-between-peers). MPI means STAGED; where "
        "`HOROVOD_CPU_OPERATIONS` is mpi as well, MPI moves the bytes between hosts and ranks. The same on "
        "every rank.",
    )
    gpu_allreduce: str = _of_device("HOROVOD_GPU_ALLREDUCE", "allreduce and Adasum")
    gpu_allgather: str = _of_device("HOROVOD_GPU_ALLGATHER", "allgather")
    gpu_broadcast: str = _of_device("HOROVOD_GPU_BROADCAST", "broadcast")
    gpu_alltoall: str = _of_device("HOROVOD_GPU_ALLTOALL", "alltoall")
    gpu_reducescatter: str = _of_device("HOROVOD_GPU_REDUCESCATTER", "reducescatter")
    num_nccl_streams: int = _setting(
        "HOROVOD_NUM_NCCL_STREAMS",
        _streams,
        "1",
        "Accepted, without effect: operations of NCCL run one after another, in the order that all ranks "
        "agree on, so a second stream would have nothing to do.",
        flag=Flag("--num-nccl-streams", "libraries", "N", "library_options.num_nccl_streams", read=_COUNT),
    )
    async_completion: bool = _setting(
        "HOROVOD_ENABLE_ASYNC_COMPLETION",
        _switch,
        "0",
        "An operation of NCCL is done once it is on its stream, not once it has ended there: for scripts "
        "that use the result on a stream only. Of a rank that is lost meanwhile the next operation tells.",
        engine=True,
    )
    mpi_threads_disable: bool = _setting(
        "HOROVOD_MPI_THREADS_DISABLE",
        _switch,
        "0",
        "Ask MPI for calls from one thread at a time only.",
        flag=Flag(
            "--mpi-threads-disable",
            "libraries",
            key="library_options.mpi_threads_disable",
            off="--no-mpi-threads-disable",
        ),
    )
    thread_affinity: tuple[int, ...] = _setting(
        "HOROVOD_THREAD_AFFINITY",
        _cores,
        "",
        "Cores for the engine's thread, one for each local rank: 0,4,8. With fewer cores than local "
        "ranks nothing is pinned.",
        flag=Flag("--thread-affinity", "libraries", "CORES", "library_options.thread_affinity"),
    )
    dynamic_process_sets: bool = _setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        _not_zero,
        "0",
        "Process sets may be added and removed after `init()`; also set by "
        '`init(process_sets="dynamic")`. Any number but 0 is on.',
    )
    timeline: str = _setting(
        "HOROVOD_TIMELINE",
        str,
        "",
        "File for rank 0's timeline; DYNAMIC: none until start_timeline() is called. "
        "Set it on every rank: [timeline](timeline.md).",
        engine=True,
        flag=Flag("--timeline-filename", "timeline", "FILE", "timeline.filename", path="file"),
    )
    timeline_mark_cycles: bool = _setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _switch,
        "0",
        "Mark in that file when the engine begins to work.",
        engine=True,
        flag=Flag(
            "--timeline-mark-cycles", "timeline", key="timeline.mark_cycles", off="--no-timeline-mark-cycles"
        ),
    )
    elastic: bool = _setting(
        "HOROVOD_ELASTIC",
        _switch,
        "0",
        "Set by the launcher: the world may change: [elastic](elastic.md).",
    )
    network_interface: str = _setting(
        "HOROVOD_GLOO_IFACE",
        str,
        "",
        "Interfaces or subnets for data between hosts (eth1,10.1.0.0/16); by default those that lead to "
        "other hosts of the job. Hosts may differ: those that a host has count. `NCCL_SOCKET_IFNAME` is "
        "NCCL's own and not read.",
    )
    network_streams: int = _setting(
        "HOROVOD_NETWORK_STREAMS",
        at_least(1, at_most=16),
        "1",
        "Connections that share the data between two ranks of different hosts, up to 16; the same for "
        "every rank.",
    )
    network_connect_all: int = _setting(
        "HOROVOD_NETWORK_CONNECT_ALL",
        at_least(0),
        "128",
        "In a world of more ranks, most pairs of ranks of different hosts connect when an operation needs "
        "it; 0: never later than in init(). The same for every rank.",
    )
    network_protection: str = _setting(
        "HOROVOD_NETWORK_PROTECTION",
        one_of("auto", "off", "integrity", "full"),
        "auto",
        "What ranks say to each other over the network: off, integrity (nobody in between can change "
        "it), full (nor read it), or auto (integrity between hosts, off within one machine); the same "
        "for every rank. What is chosen counts on every connection, also within a machine. Needs "
        "OpenSSL's libcrypto, which Python usually brings: [security](security.md#between-hosts).",
    )
    transport_groups: str = _setting(
        "HOROVOD_TRANSPORT_GROUPS",
        one_of("auto", "single", "launcher"),
        "auto",
        "Who shares memory: auto (who can), launcher (only on one of its hosts), single (nobody; for tests).",
    )
    overlap_gradients: str = _setting(
        "HOROVOD_OVERLAP_GRADIENTS",
        one_of("auto", "1", "0"),
        "auto",
        "Whether DistributedOptimizer exchanges gradients while backward still computes: auto (unless "
        "the ranks share memory and leave no core idle), 1 (yes), 0 (only when it has ended).",
    )
    shared_gradients: str = _setting(
        "HOROVOD_SHARED_GRADIENTS",
        one_of("0", "auto", "1"),
        "0",
        "PyTorch gradients in memory that the ranks of a host share: 0 (none), auto (those that keep "
        "their memory from step to step), 1 (all, by a copy where needed). The results are the same. "
        "Views of a gradient that were taken before it is moved no longer see it.",
    )
    replica_check: str = _setting(
        "HOROVOD_REPLICA_CHECK",
        one_of("warn", "error", "off", fold=_folded),
        "warn",
        "What happens when ranks find that their weights differ: warn, error (on all ranks) or off (they do "
        "not look). They compare fingerprints after steps 1, 2, 4, 8 and so on: [replicas]"
        "(optimizer.md#replicas). The same on every rank.",
    )
    job_id: str = _setting(
        "HOROVOD_JOB_ID",
        str,
        "",
        "Set by the launcher: random text, the same in all ranks.",
    )
    epoch: str = _setting(
        "HOROVOD_EPOCH",
        str,
        "0",
        "Set by the launcher of elastic runs: the current round.",
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Read all settings. An empty variable counts as not set.

        Raises:
            ConfigError: a value makes no sense; ``variable`` names where.
        """
        given: dict[str, Any] = {}
        followed = set()
        for name, setting in SETTINGS.items():
            for variable in setting.variables:
                if text := environ.get(variable, ""):
                    given[name] = _value(setting, variable, text)
                    if variable != setting.variables[0]:
                        followed.add(name)
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
        if config.stall_check_disable:
            config = dataclasses.replace(config, stall_warning_s=0.0, stall_shutdown_s=0.0)
        return config

    def of_engine(self) -> dict[str, Any]:
        """The engine's settings by name."""
        return {name: getattr(self, name) for name, setting in SETTINGS.items() if setting.engine}


SETTINGS: Mapping[str, Setting] = {
    field.name: field.metadata["setting"] for field in dataclasses.fields(Config)
}
"""Every field of :class:`Config` by its name."""


def value_of(name: str, environ: Mapping[str, str]) -> Any:
    """One setting alone, for who needs no other.

    Raises:
        ConfigError: its value makes no sense.
    """
    setting = SETTINGS[name]
    for variable in setting.variables:
        if text := environ.get(variable, ""):
            return _value(setting, variable, text)
    return getattr(Config, name)


def _value(setting: Setting, variable: str, text: str) -> Any:
    if setting.parse is _switch and not re.fullmatch(rf"{_NUMBER}\s*", text):
        _log.warning("%s=%s is not a number: write 1 for on and 0 for off.", variable, text)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}.", variable=variable) from None


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
        _correct(_LOST, lost, "makes a busy machine look dead", SHORTEST_HEARTBEAT_TIMEOUT_S)
        lost = SHORTEST_HEARTBEAT_TIMEOUT_S
    if init < stuck and "operation_timeout_s" not in given:
        stuck = max(init, lost + 1)
    if "heartbeat_timeout_s" in given and "operation_timeout_s" not in given:
        stuck = max(stuck, 1.5 * lost)
    if stuck <= lost:
        shorter = max(stuck / 2, SHORTEST_HEARTBEAT_TIMEOUT_S)
        if "heartbeat_timeout_s" in given and shorter < lost:
            _correct(_LOST, lost, f"is not below {_STUCK}={stuck:g}: no silent rank could be named", shorter)
        lost = min(lost, shorter)
    if stuck <= lost:
        _correct(_STUCK, stuck, "is too short to find out who is silent", lost + 1)
        stuck = lost + 1
    if init < stuck and "operation_timeout_s" in given and "init_timeout_s" in given:
        _correct("HOROVOD_START_TIMEOUT", init, f"is below {_STUCK}={stuck:g}", stuck)
    if "operation_timeout_s" in given or "init_timeout_s" not in given:
        init = max(init, stuck)
    warning = config.heartbeat_warning_s
    if lost > 0 and warning >= lost:
        if "heartbeat_warning_s" in given:
            _correct("HOROVOD_HEARTBEAT_WARNING_SECONDS", warning, f"is not below {_LOST}={lost:g}", lost / 2)
        warning = lost / 2
    return dataclasses.replace(
        config,
        heartbeat_timeout_s=lost,
        heartbeat_warning_s=warning,
        operation_timeout_s=stuck,
        init_timeout_s=init,
    )


_LOST = "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS"
_STUCK = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def _correct(variable: str, given_s: float, why: str, counts_s: float) -> None:
    _log.warning("%s=%g %s: %g s count.", variable, given_s, why, counts_s)
