"""Texts that people and schedulers write: a value, or an error that names what is wrong. Never anything else,
and never a long time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from horovod.bootstrap.place import pmi
from horovod.bootstrap.place.addresses import join_hosts, split_hosts
from horovod.bootstrap.place.launchers import LAUNCHERS, OWN, meeting_point, present
from horovod.bootstrap.place.topology import read_place
from horovod.bootstrap.trust.secret import job_key
from horovod.config import SETTINGS, Config
from horovod.errors import ConfigError, RendezvousError
from horovod.launch.placement.hosts import assign_ranks, parse_hostfile, parse_hosts
from horovod.launch.rank_wrapper import rank_and_size

digits = st.sampled_from([1, 5, 20, 5000]).map(lambda count: "9" * count)
pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [*"[](){},:;=-#/\\ \t\n0123456789", "host", "slots", "gpu[1-3]", "::1", "127.0.0.1", "\0"]
    ),
    st.integers().map(str),
    st.floats().map(str),
    digits,
)
T = TypeVar("T")
names = st.sampled_from(["a", "server-1", "10.0.0.1", "-v", "-oProxyCommand", ".", "[::1]"])
counted = st.tuples(
    names, st.sampled_from([":", " slots=", " slots = "]), st.integers(-1, 9).map(str) | digits
)
texts = st.one_of(
    st.lists(pieces, max_size=8).map("".join),
    st.lists(counted.map("".join), max_size=3).map(",".join),
    counted.map("".join),
    digits,
)


def family_variables() -> set[str]:
    """Everything that entries for launchers name."""
    found: set[str] = set()
    for family in (OWN, *LAUNCHERS):
        for value in dataclasses.asdict(family).values():
            words = [value] if isinstance(value, str) else value if isinstance(value, tuple) else ()
            found.update(word for word in words if isinstance(word, str) and word.isupper())
    return found


OTHER_VARIABLES = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_STORE",
    "HOROVOD_HOSTNAME",
    "SLURM_JOB_ID",
    "SLURM_NODELIST",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMI_FD",
}
environments = st.dictionaries(
    st.sampled_from(sorted(family_variables() | OTHER_VARIABLES)),
    st.one_of(texts, st.integers(0, 8).map(str)),
    max_size=14,
)


def attempt(call: Callable[[], T]) -> tuple[T | None, ConfigError]:
    """What it returns, or its refusal; any other exception is a finding."""
    try:
        return call(), ConfigError()
    except ConfigError as refusal:
        return None, refusal


@given(text=texts)
def test_hosts(text: str) -> None:
    hosts, refusal = attempt(lambda: parse_hosts(text))
    if hosts is None:
        assert str(refusal)
        return
    assert all(host.name and host.slots >= 0 for host in hosts)
    assert not any(host.name.startswith("-") for host in hosts), "it would be an option of ssh"
    assert len({host.name for host in hosts}) == len(hosts)


@given(text=texts)
def test_host_files(text: str) -> None:
    hosts, refusal = attempt(lambda: parse_hostfile(text, "hosts.txt"))
    if hosts is None:
        assert "hosts.txt" in str(refusal)
        return
    assert not any(host.name.startswith("-") for host in hosts), "it would be an option of ssh"
    total = sum(host.slots for host in hosts)
    ranks = assign_ranks(hosts, 0, min(total, 100))
    assert [slot.rank for slot in ranks] == list(range(min(total, 100)))


@given(
    environ=st.dictionaries(
        st.sampled_from(sorted(each.variables[0] for each in SETTINGS.values())), texts, max_size=6
    )
)
def test_settings(environ: dict[str, str]) -> None:
    config, refusal = attempt(lambda: Config.from_environ(environ))
    if config is None:
        assert refusal.variable in environ
        assert str(refusal.variable) in str(refusal)


@given(environ=environments)
def test_the_environment_of_a_launcher(environ: dict[str, str]) -> None:
    place, refusal = attempt(lambda: read_place(environ))
    if place is None:
        assert str(refusal)
        return
    assert 0 <= place.rank < place.size
    started = any(present(family, environ) for family in (OWN, *LAUNCHERS))
    assert started or place.size == 1


@given(environ=environments, size=st.integers(1, 9))
def test_where_ranks_of_other_launchers_meet(environ: dict[str, str], size: int) -> None:
    for family in LAUNCHERS:
        meeting = meeting_point(family, environ, size)
        if meeting is not None:
            assert meeting.host
            assert meeting.job


@given(launcher=st.sampled_from(["mpirun", "srun", "jsrun"]), environ=environments)
def test_the_number_of_a_rank_below_horovodrun(launcher: str, environ: dict[str, str]) -> None:
    found, refusal = attempt(lambda: rank_and_size(launcher, environ))
    if found is None:
        assert str(refusal)
        return
    rank, size = found
    assert 0 <= rank < size


@given(number=texts | st.integers(-5, 2**70).map(str) | st.sampled_from(["0", "1", "2", "٣"]))
def test_a_process_manager_that_is_not_there(number: str) -> None:
    """The descriptors of this process are no process manager's."""
    try:
        pmi.exchange({"PMI_FD": number}, "", 0.1)
    except RendezvousError as refusal:
        said = str(refusal)
    assert "PMI" in said


@given(text=texts)
def test_lists_of_addresses(text: str) -> None:
    try:
        hosts = split_hosts(text)
    except ValueError:
        return
    assert split_hosts(join_hosts(hosts)) == hosts


@given(text=texts)
def test_keys_are_never_in_the_error(text: str) -> None:
    key, refusal = attempt(lambda: job_key({"HOROVOD_SECRET_KEY": text}, ""))
    if key is None:
        assert len(text.strip()) < 8 or text.strip() not in str(refusal)
    else:
        assert len(key) >= 16
