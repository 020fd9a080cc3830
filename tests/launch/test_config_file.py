"""Options in a file, beside those of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.errors import ConfigError
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import to_job
from horovod.launch.options.table import every_option
from horovod.launch.options.values import LaunchOptions
from horovod.launch.placement.hosts import HostSlots

REFERENCE = """\
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
autotune:
  enabled: false
  log_file: autotune.log
  warmup_samples: 5
  gaussian_process_noise: 0.2
timeline:
  filename: timeline.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  thread_affinity: 1
  gloo_timeout_seconds: 25
logging:
  level: INFO
  with_timestamp: false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def read(file: Path, text: str, *words: str) -> LaunchOptions:
    file.write_text(text)
    return parse_command_line(["--config-file", str(file), *words, "true"])


def test_sections_of_the_reference_are_read(file: Path) -> None:
    options = read(file, REFERENCE)
    assert options.variables == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "10.0",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_AUTOTUNE": "0",
        "HOROVOD_TIMELINE": "timeline.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240",
        "HOROVOD_MPI_THREADS_DISABLE": "1",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_THREAD_AFFINITY": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "25",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }
    assert options.launcher == "ssh"
    assert options.notices == ()


def test_every_option_may_stand_at_the_top_under_its_long_name(file: Path) -> None:
    text = """\
num-proc: 3
hosts: a:2,b:2
ssh_port: 2222
ssh-identity-file: key
ssh-args: -l me
network_interfaces: [eth0, eth1]
output-filename: logs
prefix-output-with-timestamp: true
fusion-threshold-mb: 1
no-stall-check: true
launcher: srun
mpi-args: [--mpi=pmix, -v]
verbose: true
gloo: false
"""
    options = read(file, text)
    job = to_job(options)
    assert (job.processes, job.hosts) == (3, (HostSlots("a", 2), HostSlots("b", 2)))
    assert (job.ssh.port, job.ssh.identity_file, job.ssh.arguments) == (2222, "key", ("-l", "me"))
    assert job.interfaces == ("eth0", "eth1")
    assert (job.output_directory, job.timestamps) == (Path("logs"), True)
    assert job.options == {
        "HOROVOD_FUSION_THRESHOLD": "1048576",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    assert (options.launcher, options.launcher_arguments) == ("srun", ("--mpi=pmix", "-v"))
    assert options.verbose is True
    assert options.notices == ()


def test_every_option_has_a_key(file: Path) -> None:
    for option in every_option():
        if option.in_file:
            value = "true" if option.is_switch else "[1, 1]" if option.values > 1 else "1"
            if option.choices:
                value = option.choices[0]
            if option.name == "hosts":
                value = "a:1"
            text = f"{option.longest.lstrip('-')}: {value}"
            if option.warning:
                with pytest.warns(DeprecationWarning, match=option.warning):
                    read(file, text)
            else:
                assert not any("unknown" in notice for notice in read(file, text).notices)


@pytest.mark.parametrize("before", [True, False])
def test_command_line_wins_wherever_it_stands(before: bool, file: Path) -> None:
    file.write_text("params: {cycle_time_ms: 10, cache_capacity: 5}\nhostfile: nowhere\ncontroller: mpi\n")
    given = ["--cycle-time-ms", "20", "-H", "a:1", "--jsrun"]
    option = ["--config-file", str(file)]
    options = parse_command_line([*(given + option if before else option + given), "true"])
    assert options.variables == {"HOROVOD_CYCLE_TIME": "20.0", "HOROVOD_CACHE_CAPACITY": "5"}
    assert options.hostfile is None
    assert options.launcher == "jsrun"


def test_a_switch_of_the_command_line_wins_over_its_opposite_in_the_file(file: Path) -> None:
    options = read(
        file, "stall_check: {enabled: false}\ntorus-allreduce: true", "--stall-check", "--no-torus-allreduce"
    )
    assert options.variables == {
        "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_TORUS_ALLREDUCE": "0",
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "params:\n", "params: {cycle_time_ms: }\n"])
def test_a_file_that_says_nothing_is_fine(text: str, file: Path) -> None:
    options = read(file, text)
    assert options.variables == {}
    assert options.notices == ()


@pytest.mark.parametrize(
    ("text", "variable", "value"),
    [
        ("stall_check:\n", "HOROVOD_STALL_CHECK_DISABLE", "0"),
        ("stall_check: {warning_time_seconds: 3}", "HOROVOD_STALL_CHECK_DISABLE", "0"),
        ("autotune:\n", "HOROVOD_AUTOTUNE", "0"),
        ("autotune: {enabled: true}", "HOROVOD_AUTOTUNE", "1"),
        ("autotune: true", "HOROVOD_AUTOTUNE", "1"),
        ("logging: {with_timestamp: true}", "HOROVOD_LOG_HIDE_TIME", "0"),
        ("log-without-timestamp: true", "HOROVOD_LOG_HIDE_TIME", "1"),
    ],
)
def test_sections_and_switches(text: str, variable: str, value: str, file: Path) -> None:
    assert read(file, text).variables[variable] == value


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("parms: {cycle_time_ms: 1}", "parms: unknown, ignored. Did you mean params?"),
        (
            "params: {cycle_tim_ms: 1}",
            "section params: cycle_tim_ms: unknown, ignored. Did you mean cycle_time_ms?",
        ),
        ("logging: {hide_timestamp: true}", "Did you mean with_timestamp?"),
        ("hots: a:1", "hots: unknown, ignored. Did you mean hosts?"),
        ("qqq: 1", "qqq: unknown, ignored"),
        ("config-file: x", "config-file: unknown, ignored"),
        ("7: 1", "7: unknown, ignored"),
    ],
)
def test_unknown_keys_are_told(text: str, notice: str, file: Path) -> None:
    (told,) = read(file, text).notices
    assert told.startswith(str(file))
    assert notice in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "params: {fusion_threshold_mb: -1}",
            "section params: fusion_threshold_mb: must be at least 0, not -1",
        ),
        ("params: {fusion_threshold_mb: lots}", "'lots' is not a whole number"),
        ("params: {fusion_threshold_mb: true}", "must be one value, not true or false"),
        ("params: {cycle_time_ms: [1]}", "must be one value, not a list"),
        ("params: 3", "params: is a section, with keys such as fusion_threshold_mb"),
        ("params: {hierarchical_allreduce: 2}", "must be true or false, not 2"),
        ("controller: smoke", "controller: must be gloo, mpi"),
        ("logging: {level: LOUD}", "section logging: level: invalid choice: 'LOUD'"),
        ("hosts: a:1\nhostfile: f", "hostfile: cannot be given together with .*: hosts"),
        ("num-proc: 2\nnp: 3", "np: cannot be given together with .*: num-proc"),
        ("gloo: true\nmpi: true", "mpi: cannot be given together"),
        ("network-interfaces: eth0,", "has an empty name"),
        ("autotune: {warmup_samples: -1}", "section autotune: warmup_samples: must be at least 0"),
        ("autotune: {gaussian_process_noise: 2}", "must be at most 1"),
        ("- a\n- b", "must have keys"),
        ("a: [", "is not YAML"),
        ("blacklist-cooldown-range: 3", "must be a list of 2 values"),
    ],
)
def test_wrong_values_name_file_section_and_key(text: str, message: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(file, text)
    assert str(file) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        parse_command_line(["--config-file", str(tmp_path / "nowhere.yaml"), "true"])


def test_code_in_a_file_is_not_run(file: Path) -> None:
    with pytest.raises(ConfigError, match="is not YAML"):
        read(file, "hosts: !!python/object/apply:os.getcwd []")
