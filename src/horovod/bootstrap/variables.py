"""The variables with our prefix: which are read, which have no effect, and what to say of all others.

Job files and images of others set variables that nothing reads here, and names are misspelled. Either way a
setting that somebody relies on does not count, and nothing else would tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from horovod.bootstrap.place.interpreter import PATH_VARIABLE
from horovod.bootstrap.place.launchers import OWN
from horovod.bootstrap.place.starter import VARIABLE as STARTER_VARIABLE
from horovod.bootstrap.store.membership import WAIT_VARIABLE, WORKER_VARIABLE
from horovod.bootstrap.trust.secret import SECRET_VARIABLE
from horovod.config import LOG_LEVELS, SETTINGS, is_log_level

__all__ = ["WITHOUT_EFFECT", "Ineffective", "is_known", "remarks"]

PREFIX = "HOROVOD_"
_LEVEL_VARIABLE = "HOROVOD_LOG_LEVEL"


class Ineffective(NamedTuple):
    """Variables that are accepted, and read by nothing in this version.

    Attributes:
        why: the end of "... has no effect: "; also in ``--help`` and in docs/settings.md.
        usual: what asks for nothing, besides "0": no remark is made of it.
        options: those of ``horovodrun`` that set it, as docs/settings.md shows them.
        further: variables that only say more about these.
    """

    variables: tuple[str, ...]
    why: str
    usual: str = "0"
    options: tuple[str, ...] = ()
    further: tuple[str, ...] = ()


_TUNING = ("LOG", "WARMUP_SAMPLES", "STEPS_PER_SAMPLE", "BAYES_OPT_MAX_SAMPLES", "GAUSSIAN_PROCESS_NOISE")

WITHOUT_EFFECT: Sequence[Ineffective] = (
    Ineffective(
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER", "HOROVOD_TORUS_ALLREDUCE"),
        "the way of the bytes follows from who shares memory, host by host; the results are the same",
        options=("--hierarchical-allreduce", "--hierarchical-allgather", "--torus-allreduce"),
    ),
    Ineffective(
        ("HOROVOD_AUTOTUNE",),
        "this version does not tune itself; HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME can be set by "
        "hand",
        options=("--autotune", "--autotune-...", "--no-autotune"),
        further=tuple(f"HOROVOD_AUTOTUNE_{name}" for name in _TUNING),
    ),
    Ineffective(
        ("HOROVOD_BATCH_D2D_MEMCOPIES",),
        "nothing copies on a device by a kernel of its own",
        usual="1",
    ),
    Ineffective(("HOROVOD_DISABLE_NVTX_RANGES",), "no profiler ranges are written"),
    Ineffective(("HOROVOD_ENABLE_XLA_OPS",), "steps that call collectives are left out of XLA"),
    Ineffective(
        ("HOROVOD_ADASUM_MPI_CHUNK_SIZE",), "pieces are as long as the transport likes", usual="1073741824"
    ),
    Ineffective(("HOROVOD_CCL_CACHE",), "oneCCL is not supported"),
)
"""In the order of docs/settings.md, which is made from it."""

# What ranks are told about their place and their job, beside the settings.
_OF_A_RANK = frozenset(
    {
        *(OWN.rank, *OWN.sizes, OWN.local_rank, OWN.local_size, OWN.cross_rank, OWN.cross_size, OWN.hostname),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_STORE"),
        *(
            SECRET_VARIABLE,
            STARTER_VARIABLE,
            WORKER_VARIABLE,
            WAIT_VARIABLE,
            PATH_VARIABLE,
            "HOROVOD_RUN_DESCRIPTORS",
            "HOROVOD_RESTART_COUNT",
        ),
    }
)
# What images and job files set for the installer of the original, and for its Spark and Ray: no part of a run
# that is under way.
_OF_OTHERS = re.compile(
    r"HOROVOD_(WITH(OUT)?_\w+|GPU|NCCL_\w+|CUDA_\w+|ROCM_\w+|BUILD_\w+|MPICXX_\w+|CMAKE|DEBUG|VERSION"
    r"|MIXED_INSTALL|ALLOW_MIXED_GPU_IMPL|SPARK_\w+|RAY_\w+|TEST_\w+)"
)

_READ = frozenset(variable for setting in SETTINGS.values() for variable in setting.variables) | _OF_A_RANK


def is_known(name: str) -> bool:
    """Return whether a variable means something here, or is known to mean nothing in a run."""
    return (
        name in _READ
        or any(name in row.variables or name in row.further for row in WITHOUT_EFFECT)
        or _OF_OTHERS.fullmatch(name) is not None
    )


def remarks(environ: Mapping[str, str]) -> Iterator[str]:
    """A line about each variable that does not do what somebody may think it does. For one rank of a job, as
    all have the same.
    """
    given = {name for name, text in environ.items() if name.startswith(PREFIX) and text}
    for row in WITHOUT_EFFECT:
        for name in row.variables:
            if name in given and environ[name] not in ("0", row.usual):
                yield f"{name}={environ[name]} has no effect: {row.why}."
    if (level := environ.get(_LEVEL_VARIABLE, "")) and not is_log_level(level):
        levels = ", ".join(name.lower() for name in LOG_LEVELS)
        yield f"{_LEVEL_VARIABLE}={level} is no level and means warning. Choose one of: {levels}."
    strange = []
    for name in sorted(name for name in given if not is_known(name)):
        nearest = _nearest(name)
        if nearest:
            yield f"{name} is not read. Did you mean {nearest}?"
        else:
            strange.append(name)
    if strange:
        yield f"{', '.join(strange)}: nothing here reads a variable of this name."


def _nearest(name: str) -> str:
    """The variable that was probably meant; empty if none is alike."""
    import difflib  # only who is mistaken pays for it

    # Without the prefix, which makes all of them alike.
    bare = {known.removeprefix(PREFIX): known for known in sorted(_READ | _ineffective())}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.75)
    return bare[close[0]] if close else ""


def _ineffective() -> frozenset[str]:
    return frozenset(name for row in WITHOUT_EFFECT for name in (*row.variables, *row.further))
