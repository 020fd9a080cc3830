"""Channels of launchers, through which ranks learn where rank 0 serves the store if the launcher does not
say: rank 0 gives a *card*, and the others take it. There are two functions for each channel.

    pmix    PMIx server of the launcher (Open MPI), spoken to by a program of its own (``pmix.py``)
    pmi     lines of text over ``PMI_FD`` (MPICH, Intel MPI, Flux; ``pmi.py``)
    file    a file in the user's settings, which the hosts share; named by the launcher's name of the job

No channel keeps a secret: PMI and PMIx are sent in the clear between daemons that do not authenticate each
other. So a card holds addresses and a random name of the job, never a key.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from horovod.bootstrap.place import pmi, pmix
from horovod.bootstrap.place.launchers import LAUNCHERS
from horovod.bootstrap.trust.secret import read_private, settings_folder, write_private
from horovod.errors import ConfigError, RendezvousError

__all__ = ["ChannelMissing", "channels", "forget", "give", "pmix_job_size", "take"]

_log = logging.getLogger("horovod.bootstrap")

_LIBRARY = "libpmix.so.2"
_SIZE_LIMIT_S = 20.0
_POLL_S = 0.05
_MOST_CARD_BYTES = 4096


class ChannelMissing(Exception):
    """This channel cannot be used here; the next one may."""


def channels(environ: Mapping[str, str], job: str) -> tuple[str, ...]:
    """Channels in ``environ``, the most reliable first. ``job``: the launcher's name for the job, or ""."""
    found = []
    if environ.get("PMIX_NAMESPACE") and any(name.startswith("PMIX_SERVER_URI") for name in environ):
        found.append("pmix")
    if environ.get("PMI_FD"):
        found.append("pmi")
    if job:
        found.append("file")
    return tuple(found)


def give(channel: str, card: str, job: str, environ: Mapping[str, str], timeout_s: float) -> None:
    """Rank 0: let the others ``take`` the card.

    Raises:
        ChannelMissing: not over this one.
        RendezvousError: it failed half-way.
    """
    if channel == "pmix":
        _ask_pmix(environ, timeout_s, "publish", _pmix_key(environ), card)
    elif channel == "pmi":
        pmi.exchange(environ, card, timeout_s)
    else:
        _write(_file(environ, job), card)


def take(channel: str, job: str, environ: Mapping[str, str], timeout_s: float) -> str:
    """Other ranks: wait for the card of rank 0. Raises as ``give``."""
    if channel == "pmix":
        return _ask_pmix(environ, timeout_s, "lookup", _pmix_key(environ))
    if channel == "pmi":
        return pmi.exchange(environ, "", timeout_s)
    return _wait_for(_file(environ, job), timeout_s)


def forget(channel: str, job: str, environ: Mapping[str, str]) -> None:
    """Rank 0, when it ends: remove the card. Never raises."""
    if channel == "file":
        _file(environ, job).unlink(missing_ok=True)


def pmix_job_size(environ: Mapping[str, str]) -> int:
    """Ask PMIx for the number of ranks that the launcher started. Raises ``ConfigError``."""
    try:
        return int(_ask_pmix(environ, _SIZE_LIMIT_S, "size"))
    except (ChannelMissing, RendezvousError, ValueError) as error:
        raise ConfigError(
            f"PMIX_RANK={environ.get('PMIX_RANK')} says that a launcher started this process, but not of how "
            f"many it is one, and PMIx did not tell: {error}. Set HOROVOD_RANK and HOROVOD_SIZE (and "
            "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT), or unset PMIX_RANK if this is "
            "meant to be a world of one.",
            variable="PMIX_RANK",
        ) from error


# -- PMIx --


def _pmix_key(environ: Mapping[str, str]) -> str:
    name = f"{os.getuid()}/{environ['PMIX_NAMESPACE']}"
    return f"farandole.{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _ask_pmix(environ: Mapping[str, str], timeout_s: float, *words: str) -> str:
    if not sys.executable:
        raise ChannelMissing("there is no interpreter to run a program with")
    program = [sys.executable, "-I", str(Path(pmix.__file__)), _library(environ), *words]
    try:
        done = subprocess.run(
            program,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RendezvousError(
            f"Rank 0 did not call hvd.init() within {timeout_s:.3g} s: its address was awaited at the "
            "launcher (PMIx). Look for an error in its output; if it is only slow to start, raise "
            "HOROVOD_START_TIMEOUT (seconds).",
            missing=(0,),
            waited_s=timeout_s,
        ) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip()
    raise ChannelMissing(f"PMIx: {said.splitlines()[-1] if said else f'exit status {done.returncode}'}")


def _library(environ: Mapping[str, str]) -> str:
    """The library that comes with the launcher, else the system's: all versions are compatible."""
    roots = [environ.get("PMIX_PREFIX", ""), environ.get("OPAL_PREFIX", ""), sys.prefix]
    for starter in (program for launcher in LAUNCHERS for program in launcher.pmix_programs):
        if path := shutil.which(starter, path=environ.get("PATH")):
            roots.insert(2, str(Path(path).resolve().parents[1]))
    for root in filter(None, roots):
        for folder in ("lib/openmpi", "lib", "lib64/openmpi", "lib64"):
            if (library := Path(root, folder, _LIBRARY)).exists():
                return str(library)
    return _LIBRARY


# -- file --


def _file(environ: Mapping[str, str], job: str) -> Path:
    return settings_folder(environ) / "jobs" / hashlib.sha256(job.encode()).hexdigest()[:32]


def _write(path: Path, card: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(draft, card.encode())
        draft.replace(path)  # at once, so that no rank reads half of a card
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ChannelMissing(f"{path}: {error.strerror}") from error


def _wait_for(path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            card = read_private(path, _MOST_CARD_BYTES)
            if card is not None:
                return card.decode(errors="replace")
            raise ChannelMissing(f"{path} is not a file of yours that nobody else can read")
        except FileNotFoundError:
            time.sleep(_POLL_S)
        except OSError as error:
            raise ChannelMissing(f"{path}: {error.strerror}") from error
    raise RendezvousError(
        f"Rank 0 left no address in {path} within {timeout_s:.3g} s. Did it call hvd.init(), and do the "
        "hosts share this folder? Else set HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT.",
        missing=(0,),
        waited_s=timeout_s,
    )
