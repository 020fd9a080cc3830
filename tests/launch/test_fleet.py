"""Workers that come and go on hosts that come and go; here all hosts are this machine, behind real agents."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest
from tests.launch.fleets import LIMIT_S, RunningFleet, fleet_of
from tests.launch.freezers import FREEZERS, Freezer
from tests.launch.launching import PYTHON, WAIT, Watched
from tests.launch.test_connections import fake_ssh

from horovod.bootstrap.place.proc import stat_of
from horovod.errors import ConfigError, LaunchError
from horovod.launch.agent.terms import MOST_STOPS
from horovod.launch.contracts.events import (
    Continued,
    Exited,
    Gone,
    HostLost,
    LeftBehind,
    Said,
    Started,
    Stopped,
)

pytestmark = pytest.mark.timeout(3 * LIMIT_S)

DO = ("sh", "-c", 'eval "$DO"')
"""What each worker does is in its own environment."""


def test_workers_are_started_and_ended_one_by_one() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        pids = [running.start(number, DO=WAIT) for number in range(3)]
        with Watched(*pids) as watched:
            running.fleet.end([1], signal.SIGTERM)
            assert running.exited(1) == Exited(1, -signal.SIGTERM, told=True)
            assert running.gone(1) == Gone(1)
            running.start(3, DO="exit 7")
            assert running.exited(3) == Exited(3, 7)
            assert watched.still_running(0.0) == [pids[0], pids[2]]
            assert running.finish().survivors == ()
            assert watched.still_running(LIMIT_S) == []
        assert {event.rank for event in running.seen if isinstance(event, Exited)} == {0, 1, 2, 3}


def test_a_command_that_is_missing_is_refused_for_each_worker_and_ends_no_other() -> None:
    with fleet_of("no-such-command-{}") as running:
        running.reach()
        for number in range(2):
            running.begin(number)
            assert running.refused(number).errno == errno.ENOENT
            assert running.gone(number) == Gone(number)
        assert running.finish().survivors == ()
        assert not any(isinstance(event, (HostLost, Exited, Started)) for event in running.seen)


def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace_time() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=f"trap '' TERM; echo deaf; {WAIT}")
        other = running.start(1, DO=WAIT)
        running.printed("[0]<stdout>:deaf\n")
        began = time.monotonic()
        running.fleet.end([0], signal.SIGTERM)
        assert running.exited(0) == Exited(0, -signal.SIGKILL, told=True)
        assert time.monotonic() - began > 4.0
        assert os.path.exists(f"/proc/{other}")


def test_a_worker_that_is_being_ended_can_be_killed_at_once() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=f"trap '' TERM; echo deaf; {WAIT}")
        running.printed("deaf\n")
        began = time.monotonic()
        running.fleet.end([0], signal.SIGTERM)
        running.fleet.end([0], signal.SIGKILL)
        running.exited(0)
        assert time.monotonic() - began < 4.0


DAEMONS = """
setsid sh -c 'echo $$; exec sleep 1000' &
{ { setsid sh -c 'echo $$; exec sleep 1000' & } & }
(setsid sh -c 'sleep 1000 & echo $!; sleep 1000' &)
"""


def daemons(running: RunningFleet, number: int, count: int = 3) -> list[int]:
    """The process ids that a worker's daemons print."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        lines = [line.partition(f"[{number}]<stdout>:")[2] for line in running.stdout.getvalue().splitlines()]
        found = [int(line) for line in lines if line.isdigit()]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"only {found} daemons"
        time.sleep(0.005)  # nothing tells when a text is written


def test_what_a_worker_leaves_behind_is_ended_and_nothing_of_others() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        other = running.start(0, DO=f"{DAEMONS} {WAIT}")
        mine = daemons(running, 0)
        running.start(1, DO=f"{DAEMONS} exit 0")
        running.exited(1)
        left = running.await_event(LeftBehind)
        assert left.rank == 1
        assert left.processes >= 3
        assert running.gone(1) == Gone(1)
        assert [pid for pid in [other, *mine] if stat_of(pid) is None] == []
        with Watched(other, *mine) as watched:
            running.finish()
            assert watched.still_running(LIMIT_S) == []


def test_daemons_end_with_the_worker_that_is_ended() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=f"{DAEMONS} {WAIT}")
        with Watched(*daemons(running, 0)) as watched:
            running.fleet.end([0], signal.SIGTERM)
            assert running.exited(0).told
            running.gone(0)
            assert watched.still_running(0.0) == []


def test_an_orphan_in_the_session_of_a_worker_is_known_by_it() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=WAIT)
        running.start(1, DO="env -i sleep 1000 & exit 0")
        running.exited(1)
        assert running.await_event(LeftBehind) == LeftBehind(1, 1)
        running.gone(1)


def test_a_daemon_without_an_environment_ends_when_no_worker_is_left(tmp_path: Path) -> None:
    # Before it is hidden it would be ended with its worker, so the worker waits for it.
    hidden = (
        f"mkfifo {tmp_path}/told; (env -i setsid sh -c 'echo $$; echo > {tmp_path}/told; exec sleep 1000' &)"
    )
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=WAIT)
        running.start(1, DO=f"{hidden}; read nothing < {tmp_path}/told; exit 0")
        running.gone(1)
        pid = daemons(running, 1, 1)[0]
        with Watched(pid) as watched:
            running.fleet.end([0], signal.SIGTERM)
            running.gone(0)
            assert watched.still_running(LIMIT_S) == []


def test_a_host_that_was_dropped_is_reached_again() -> None:
    with fleet_of(*DO) as running:
        running.reach("a")
        running.reach("b")
        pid = running.start(0, "a", DO=WAIT)
        other = running.start(1, "b", DO=WAIT)
        with Watched(pid) as watched:
            running.fleet.drop("a")
            running.fleet.reach("a")
            with pytest.raises(ValueError, match="host a is not reached"):
                running.begin(2, "a")
            running.reach("a")
            assert watched.still_running(0.0) == []  # it is reached when nothing of before is left
        assert running.exited(0) == Exited(0, -signal.SIGTERM, told=True)
        running.start(2, "a", DO="exit 3")
        assert running.exited(2).exit_code == 3
        assert os.path.exists(f"/proc/{other}")
        assert not any(isinstance(event, HostLost) for event in running.seen)


def test_an_agent_that_is_killed_is_a_lost_host_that_can_be_reached_again() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO="exit 0")
        running.gone(0)
        pid = running.start(1, DO=WAIT)
        agent = stat_of(pid)
        assert agent is not None
        with Watched(pid) as watched:
            os.kill(agent.parent, signal.SIGKILL)
            lost = running.lost()
            assert lost.ranks == (1,)
            assert "ended unexpectedly" in lost.reason
            assert watched.still_running(LIMIT_S) == []
        running.reach()
        running.start(2, DO="exit 5")
        assert running.exited(2).exit_code == 5


def test_a_worker_that_a_signal_stops_is_told_and_that_it_goes_on() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        pid = running.start(0, DO=WAIT)
        running.start(1, DO=WAIT)
        os.kill(pid, signal.SIGSTOP)
        assert running.await_event(Stopped) == Stopped(0)
        os.kill(pid, signal.SIGCONT)
        assert running.await_event(Continued) == Continued(0)
        os.kill(pid, signal.SIGSTOP)
        running.await_event(Stopped)
        running.fleet.end([0], signal.SIGKILL)
        assert running.exited(0) == Exited(0, -signal.SIGKILL, told=True)
        running.gone(0)


NAMED = """
import os, sys, time
from horovod.bootstrap.place.starter import tell_process
tell_process()
print("this", os.getpid(), flush=True)
time.sleep(60)
"""
BELOW = f"{PYTHON} -c '{NAMED}'; exit $?"
"""A program that is below a shell, and says that it is the rank."""


def named(running: RunningFleet, number: int) -> int:
    """The process that has said so."""
    running.printed(f"[{number}]<stdout>:this ")
    return int(running.stdout.getvalue().rpartition(f"[{number}]<stdout>:this ")[2].split()[0])


def test_a_rank_below_a_shell_that_a_signal_stops_is_told_and_that_it_goes_on() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        shell = running.start(0, DO=BELOW)
        pid = named(running, 0)
        assert pid != shell
        for _ in range(2):
            os.kill(pid, signal.SIGSTOP)
            assert running.await_event(Stopped) == Stopped(0)
            os.kill(pid, signal.SIGCONT)
            assert running.await_event(Continued) == Continued(0)
        assert not any(isinstance(event, Said) for event in running.seen)


def test_a_program_above_a_rank_that_a_signal_stops_does_not_count(tmp_path: Path) -> None:
    """Only until the rank is known, and when it has ended: then nothing goes on before the program does."""
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    program = tmp_path / "rank.py"
    program.write_text(f"print('begun', flush=True); open({str(waits)!r}).read()\n{NAMED}")
    with fleet_of(*DO) as running:
        running.reach()
        shell = running.start(0, DO=f"{PYTHON} {program}; exit 7")
        running.printed("[0]<stdout>:begun")
        os.kill(shell, signal.SIGSTOP)
        assert running.await_event(Stopped) == Stopped(0)
        waits.write_text("")
        pid = named(running, 0)
        assert running.await_event(Continued) == Continued(0)
        os.kill(pid, signal.SIGSTOP)
        assert running.await_event(Stopped) == Stopped(0)
        os.kill(pid, signal.SIGCONT)
        assert running.await_event(Continued) == Continued(0)
        os.kill(pid, signal.SIGKILL)
        assert running.await_event(Stopped) == Stopped(0)
        os.kill(shell, signal.SIGCONT)
        assert running.exited(0).exit_code == 7


def test_what_a_rank_has_started_does_not_take_its_place(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        NAMED.replace("time.sleep", "os.system(f'{sys.executable} {sys.argv[1]}'); time.sleep")
    )
    child = tmp_path / "child.py"
    child.write_text(NAMED)
    with fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=f"{PYTHON} {program} {child}; exit $?")
        rank = named(running, 0)
        running.printed(f"this {rank}\n[0]<stdout>:this ")
        os.kill(named(running, 0), signal.SIGSTOP)
        os.kill(rank, signal.SIGSTOP)
        assert running.await_event(Stopped) == Stopped(0)
        os.kill(rank, signal.SIGCONT)
        assert running.await_event(Continued) == Continued(0)


@pytest.mark.parametrize("freezer", FREEZERS, ids=str)
def test_a_rank_in_a_frozen_group_is_told_and_that_it_goes_on(freezer: Freezer) -> None:
    with freezer.group() as group, fleet_of(*DO) as running:
        running.reach()
        running.start(0, DO=BELOW)
        group.add(named(running, 0))
        group.freeze()
        try:
            assert running.await_event(Stopped) == Stopped(0)
        finally:
            group.thaw()
        assert running.await_event(Continued) == Continued(0)


def test_a_worker_that_is_stopped_again_and_again_is_no_flood() -> None:
    with fleet_of(*DO) as running:
        running.reach()
        pid = running.start(0, DO=WAIT)
        for _ in range(MOST_STOPS):
            os.kill(pid, signal.SIGSTOP)
            running.await_event(Stopped)
            os.kill(pid, signal.SIGCONT)
            running.await_event(Continued)
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGKILL)
        assert running.exited(0).exit_code == -signal.SIGKILL
        assert not any(isinstance(event, Stopped) for event in running.unread)


def test_a_killed_child_that_watches_this_machine_is_no_ssh_client() -> None:
    """Between the launcher and the agent stands a guard; on this machine no ssh is involved."""
    with fleet_of(*DO) as running:
        running.reach()
        pid = running.start(0, DO=WAIT)
        agent = stat_of(pid)
        assert agent is not None
        guard = stat_of(agent.parent)
        assert guard is not None
        with Watched(pid) as watched:
            os.kill(guard.parent, signal.SIGKILL)
            assert running.lost().reason == "the process that watches its ranks was ended by signal 9"
            assert watched.still_running(LIMIT_S) == []


def test_output_of_late_workers_is_shown_and_their_files_go_on(tmp_path: Path) -> None:
    with fleet_of(*DO, directory=tmp_path) as running:
        running.reach()
        running.start(0, label=0, DO="echo first; printf half")
        running.gone(0)
        running.start(7, label=0, DO="echo second; echo why >&2; exit 1")
        assert running.exited(7).exit_code == 1
        running.gone(7)
        running.printed("[0]<stdout>:half")
        running.printed("[0]<stdout>:second\n")
        running.finish()
        running.output.drain(lambda: False)
        assert running.output.tail(0) == ("first", "half")
        assert running.output.tail(7) == ("why",)
    kept = (tmp_path / "rank.0" / "stdout").read_text()
    assert kept == "[0]<stdout>:first\n[0]<stdout>:half[0]<stdout>:second\n"


def test_files_that_cannot_be_opened_start_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank.0").write_text("")
    with fleet_of(*DO, directory=tmp_path) as running:
        running.reach()
        with pytest.raises(LaunchError, match=r"rank\.0"):
            running.begin(0)
        running.start(1, DO="exit 0")
        running.gone(1)


ANSWER = """
import os
call, result = map(int, os.environ["HOROVOD_RUN_DESCRIPTORS"].split(","))
os.write(result, os.environ["WHO"].encode() + os.pread(call, 100, 0))
"""


def test_workers_read_the_call_and_send_results_home() -> None:
    with fleet_of(PYTHON, "-S", "-c", ANSWER, call=[memoryview(b" was"), memoryview(b" called")]) as running:
        running.reach()
        for number in range(3):
            running.start(number, WHO=f"{number}")
            assert running.exited(number).exit_code == 0
            running.gone(number)
        running.output.discard(1)
        running.finish()
        running.output.drain(lambda: False)
        assert running.output.results() == {0: b"0 was called", 2: b"2 was called"}


def test_many_workers_one_after_the_other_cost_nothing_that_stays(tmp_path: Path) -> None:
    with fleet_of(*DO, directory=tmp_path) as running:
        running.reach()
        keeper = running.start(0, DO=WAIT)
        agent = stat_of(keeper)
        assert agent is not None

        def descriptors() -> list[int]:
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), agent.parent)]

        before = descriptors()
        for number in range(1, 201):
            running.begin(number, label=1, DO="echo out; echo err >&2")
            running.gone(number)
        deadline = time.monotonic() + LIMIT_S
        while any(now > then for now, then in zip(descriptors(), before, strict=True)):
            assert time.monotonic() < deadline, f"{before} have become {descriptors()}"
            time.sleep(0.01)  # nothing tells when the thread of the output has closed a file
        assert running.output.tail(200) == ("err",)
    assert (tmp_path / "rank.1" / "stderr").read_text() == "[1]<stderr>:err\n" * 200


def test_workers_of_this_machine_have_the_environment_of_the_job_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = 'echo "${OF_THE_LAUNCHER-none} $OF_THE_JOB $OF_THE_WORKER"'
    with fleet_of("sh", "-c", script, variables={"OF_THE_JOB": "2"}) as running:
        monkeypatch.setenv("OF_THE_LAUNCHER", "1")  # as of now: the plan is without it, the agent has it
        running.reach()
        running.start(0, OF_THE_WORKER="3")
        running.printed("[0]<stdout>:none 2 3\n")


def test_finish_without_any_host_ends_at_once() -> None:
    with fleet_of(*DO) as running:
        assert running.finish().survivors == ()


def test_hosts_that_are_still_awaited_do_not_hold_up_the_end() -> None:
    with fleet_of(*DO) as running:
        running.fleet.reach("a")
        running.fleet.reach("b")
        running.fleet.drop("b")
        assert running.finish().survivors == ()


@pytest.mark.parametrize(
    ("launcher", "instead"),
    [
        ("mpirun", r"--launcher ssh\.$"),
        ("srun", r"--launcher ssh, also in a job of Slurm: its nodes must allow"),
    ],
)
def test_launchers_that_cannot_add_ranks_say_what_can(launcher: str, instead: str) -> None:
    why = f"{launcher} cannot add ranks to a running job.*{instead}"
    with pytest.raises(ConfigError, match=why), fleet_of(*DO, launcher=launcher):
        pass


def test_a_host_that_is_reached_when_the_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with fleet_of(*DO) as running:
        here.rmdir()
        running.reach()
        running.start(0, DO="exit 4")
        assert running.exited(0).exit_code == 4
        assert f"has no directory {here} (No such file or directory)" in running.stderr.getvalue()


def test_a_host_that_does_not_answer_is_told_once_and_tried_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = f'mkdir {tmp_path}/once 2>/dev/null && {{ echo "connect: Connection refused" >&2; exit 255; }}'
    monkeypatch.setenv("PATH", fake_ssh(tmp_path, extra)["PATH"])
    with fleet_of(*DO, launcher="ssh") as running:
        running.fleet.reach("no-such-host-0")
        lost = running.lost("no-such-host-0")
        assert lost.ranks == ()
        assert "No ssh server listens there" in lost.reason
        reached = running.reach("no-such-host-0")
        assert reached.facts.origin == "127.0.0.1"
        running.start(0, "no-such-host-0", DO='echo "up $SSH_HOST"')
        running.printed("[0]<stdout>:up no-such-host-0\n")
        assert len([event for event in running.seen if isinstance(event, HostLost)]) == 1


def test_a_host_that_says_nothing_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_ssh(tmp_path, "echo 'key exchange' >&2; exec sleep 60")["PATH"])
    with fleet_of(*DO, launcher="ssh", start_s=1.0) as running:
        running.fleet.reach("no-such-host-0")
        reason = running.lost("no-such-host-0", limit_s=8.0).reason
        assert reason == "no answer within 1 s; before that: key exchange"


def test_a_host_that_is_silent_is_lost_with_all_that_was_started_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends the connection comes while something is started: nothing is forgotten."""
    monkeypatch.setenv("PATH", fake_ssh(tmp_path)["PATH"])
    with fleet_of(*DO, launcher="ssh", silence_s=3.0) as running:
        running.reach("no-such-host-0")
        pid = running.start(0, "no-such-host-0", DO=WAIT)
        agent = stat_of(pid)
        assert agent is not None
        with Watched(pid) as watched:
            os.kill(agent.parent, signal.SIGSTOP)
            try:
                running.begin(1, "no-such-host-0", DO=WAIT)
                lost = running.lost("no-such-host-0")
            finally:
                os.kill(agent.parent, signal.SIGCONT)
            assert lost.ranks == (0, 1)
            assert "nothing has been heard" in lost.reason
            assert watched.still_running(LIMIT_S) == []


def test_a_host_that_others_have_lost_is_lost_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that speaks stays."""
    monkeypatch.setenv("PATH", fake_ssh(tmp_path)["PATH"])
    with fleet_of(*DO, launcher="ssh", silence_s=1.5 * LIMIT_S) as running:
        for number in (0, 1):
            running.reach(f"no-such-host-{number}")
        pid = running.start(0, "no-such-host-0", DO=WAIT)
        running.start(1, "no-such-host-1", DO=WAIT)
        agent = stat_of(pid)
        assert agent is not None
        os.kill(agent.parent, signal.SIGSTOP)
        try:
            for number in (0, 1):
                running.fleet.doubt(f"no-such-host-{number}")
            running.fleet.doubt("nobody")
            lost = running.lost("no-such-host-0")
        finally:
            os.kill(agent.parent, signal.SIGCONT)
        assert lost.ranks == (0,)
        assert not [event for event in running.seen if isinstance(event, HostLost) and event is not lost]


@pytest.mark.parametrize("name", ["", "a" * 300, "-oProxyCommand=true", "\udcff", chr(0xD800), "\0"])
def test_what_is_no_name_of_a_host_is_a_host_that_cannot_be_reached(name: str) -> None:
    with fleet_of(*DO, launcher="ssh") as running:
        running.fleet.reach(name)
        assert running.lost(name).ranks == ()
