from __future__ import annotations

from pathlib import Path

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.launch.hosts import HostSlots
from horovod.launch.job import Job
from horovod.launch.options import option_environment, parse_command_line, to_job


def environment(*options: str) -> dict[str, str]:
    return option_environment(parse_command_line([*options, "-np", "2", "true"]))


def job(*words: str) -> Job:
    return to_job(parse_command_line(words))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fusion-threshold-mb", "10"], {"HOROVOD_FUSION_THRESHOLD": "10485760"}),
        (["--fusion-threshold-mb", "0"], {"HOROVOD_FUSION_THRESHOLD": "0"}),
        (["--cycle-time-ms", "20"], {"HOROVOD_CYCLE_TIME": "20.0"}),
        (["--cycle-time-ms", "0.5"], {"HOROVOD_CYCLE_TIME": "0.5"}),
        (["--cache-capacity", "512"], {"HOROVOD_CACHE_CAPACITY": "512"}),
        (["--hierarchical-allreduce"], {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        (["--no-hierarchical-allreduce"], {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
        (["--hierarchical-allgather"], {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}),
        (["--no-hierarchical-allgather"], {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        (["--torus-allreduce"], {"HOROVOD_TORUS_ALLREDUCE": "1"}),
        (["--no-torus-allreduce"], {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        (["--no-autotune"], {"HOROVOD_AUTOTUNE": "0"}),
        (
            ["--timeline-filename", "t.json", "--timeline-mark-cycles"],
            {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
        ),
        (["--no-timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (
            ["--stall-check-warning-time-seconds", "10", "--stall-check-shutdown-time-seconds", "20"],
            {"HOROVOD_STALL_CHECK_TIME_SECONDS": "10", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"},
        ),
        (["--num-nccl-streams", "2"], {"HOROVOD_NUM_NCCL_STREAMS": "2"}),
        (["--thread-affinity", "1"], {"HOROVOD_THREAD_AFFINITY": "1"}),
        (["--gloo-timeout-seconds", "60"], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}),
        (["--start-timeout", "5"], {"HOROVOD_START_TIMEOUT": "5"}),
        (["--log-level", "INFO"], {"HOROVOD_LOG_LEVEL": "INFO"}),
        (["--log-level", "debug"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        (["--log-without-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "1"}),
        (["--log-with-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "0"}),
        (["--gloo", "--disable-cache", "--no-mpi-threads-disable"], {}),
        ([], {}),
    ],
)
def test_options_become_their_variables_and_nothing_else(
    options: list[str], expected: dict[str, str]
) -> None:
    assert environment(*options) == expected


@pytest.mark.parametrize(
    ("option", "value"), [("--log-hide-timestamp", "1"), ("--no-log-hide-timestamp", "0")]
)
def test_old_spellings_of_log_time_warn(option: str, value: str) -> None:
    with pytest.warns(DeprecationWarning, match="--log-without-timestamp"):
        assert environment(option) == {"HOROVOD_LOG_HIDE_TIME": value}


def test_timestamps_of_output_go_with_a_log_without() -> None:
    arguments = parse_command_line(["-np", "1", "-prefix-timestamp", "--log-without-timestamp", "true"])
    assert to_job(arguments).timestamps
    assert option_environment(arguments) == {"HOROVOD_LOG_HIDE_TIME": "1"}


@pytest.mark.parametrize("spelling", ["-np", "--num-proc", "--num-p"])
def test_number_of_processes_has_two_spellings_and_prefixes(spelling: str) -> None:
    assert job(spelling, "3", "true").processes == 3


@pytest.mark.parametrize("spelling", ["-H", "--hosts"])
def test_hosts_have_two_spellings(spelling: str) -> None:
    assert job("-np", "3", spelling, "a:1,b:2", "true").hosts == (HostSlots("a", 1), HostSlots("b", 2))


@pytest.mark.parametrize("spelling", ["-hostfile", "--hostfile"])
def test_hostfile_has_two_spellings(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb\n")
    found = job("-np", "3", spelling, str(tmp_path / "hosts"), "true").hosts
    assert found == (HostSlots("a", 2), HostSlots("b", 1))


def test_missing_hostfile_is_named() -> None:
    with pytest.raises(ConfigError, match="no/such/file cannot be read: No such file"):
        job("-np", "1", "--hostfile", "no/such/file", "true")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python", "t.py", "-np", "9"], ("python", "t.py", "-np", "9")),
        (["--", "python", "t.py"], ("python", "t.py")),
        (["--", "python", "-c", "pass", "--", "x"], ("python", "-c", "pass", "--", "x")),
        (["--", "--verbose"], ("--verbose",)),
        (["--", "--", "x"], ("--", "x")),
        (["sh", "-c", "echo a b", ""], ("sh", "-c", "echo a b", "")),
        (
            ["python", "t.py", "--log", "x", "--num=3", "-pr"],
            ("python", "t.py", "--log", "x", "--num=3", "-pr"),
        ),
        (["--cycle-time-ms=2", "--log-lev", "INFO", "-Hlocalhost:2", "t"], ("t",)),
        (["--stall-check-w", "2", "--verb", "t", "--verb"], ("t", "--verb")),
        (["train", "--mpi", "--help", "-v"], ("train", "--mpi", "--help", "-v")),
    ],
)
def test_everything_after_the_command_belongs_to_it(words: list[str], command: tuple[str, ...]) -> None:
    assert job("-np", "2", *words).command == command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["true"], "-np is missing"),
        (["python", "-np", "2"], "-np is missing"),
        (["-np", "2"], "command to run is missing"),
        (["-np", "2", "--"], "command to run is missing"),
        (["-np", "0", "true"], "must be at least 1, not 0"),
        (["-np", "-1", "true"], "must be at least 1, not -1"),
        (["-np", "two", "true"], "'two' is not a whole number"),
        (["-np", "1.5", "true"], "'1.5' is not a whole number"),
        (["-np", "2", "--nonsense", "true"], "--nonsense"),
        (["-np", "2", "-H", "a:2", "-hostfile", "f", "true"], "not allowed with"),
        (["-np", "2", "--stall-check", "--no-stall-check", "true"], "not allowed with"),
        (["-np", "2", "--torus-allreduce", "--no-torus-allreduce", "true"], "not allowed with"),
        (["-np", "2", "--log-with-timestamp", "--log-without-timestamp", "true"], "not allowed with"),
        (
            ["-np", "2", "--fusion-threshold-mb", "-1", "true"],
            "--fusion-threshold-mb: must be at least 0, not -1",
        ),
        (["-np", "2", "--cycle-time-ms", "nan", "true"], "must be at least 0, not nan"),
        (["-np", "2", "--cycle-time-ms", "-0.1", "true"], "must be at least 0, not -0.1"),
        (["-np", "2", "--cache-capacity", "-1", "true"], "must be at least 0"),
        (["-np", "2", "--stall-check-warning-time-seconds", "-1", "true"], "must be at least 0"),
        (["-np", "2", "--gloo-timeout-seconds", "-1", "true"], "must be at least 0"),
        (["-np", "2", "--thread-affinity", "-1", "true"], "must be at least 0"),
        (["-np", "2", "--start-timeout", "0", "true"], "must be at least 1"),
        (["-np", "2", "--log-level", "LOUD", "true"], "invalid choice"),
        (["-np", "2", "--hierarchical", "true"], "ambiguous"),
    ],
)
def test_wrong_usage_ends_with_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--network-interfaces", "eth0"], "this machine only"),
        (["--network-interface", "eth0"], "this machine only"),
        (["-p", "22"], "this machine only"),
        (["--ssh-port", "22"], "this machine only"),
        (["-i", "key"], "this machine only"),
        (["--config-file", "f.yaml"], "config files"),
        (["--autotune"], "--fusion-threshold-mb"),
        (["--autotune-log-file", "f"], "--fusion-threshold-mb"),
        (["--min-np", "1"], "fixed number of processes"),
        (["--min-num-proc", "1"], "fixed number of processes"),
        (["--max-np", "1"], "fixed number of processes"),
        (["--slots", "4"], "fixed number of processes"),
        (["--blacklist-cooldown-range", "1", "2"], "fixed number of processes"),
        (["--host-discovery-script", "s"], "fixed number of processes"),
        (["--mpi"], "through MPI"),
        (["--jsrun"], "through MPI"),
        (["--mpi-args=-x A"], "through MPI"),
        (["--tcp"], "through MPI"),
    ],
)
def test_options_of_later_versions_are_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        parse_command_line([*words, "-np", "2", "true"])
    assert str(caught.value).startswith(words[0].partition("=")[0])


@pytest.mark.parametrize("words", [["--check-build"], ["-cb"], ["-v"], ["--version"]])
def test_reports_need_neither_processes_nor_command(words: list[str]) -> None:
    arguments = parse_command_line(words)
    assert arguments.version or arguments.check_build
