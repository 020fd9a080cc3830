from __future__ import annotations

import re
from pathlib import Path

import pytest

from horovod.bootstrap.variables import WITHOUT_EFFECT, Ineffective
from horovod.config import SETTINGS
from horovod.errors import ConfigError
from horovod.launch.contracts.job import Job, SshOptions
from horovod.launch.options import foreign
from horovod.launch.options.command_line import parse_command_line
from horovod.launch.options.job import rank_map, to_job
from horovod.launch.options.table import every_option, spellings
from horovod.launch.options.values import ElasticOptions
from horovod.launch.placement.hosts import Allocated, HostSlots


def environment(*options: str) -> dict[str, str]:
    return dict(parse_command_line([*options, "-np", "2", "true"]).variables)


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
        (["--thread-affinity", "0,4"], {"HOROVOD_THREAD_AFFINITY": "0,4"}),
        (["--gloo-timeout-seconds", "60"], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}),
        (["--start-timeout", "5"], {"HOROVOD_START_TIMEOUT": "5"}),
        (["--log-level", "INFO"], {"HOROVOD_LOG_LEVEL": "INFO"}),
        (["--log-level", "debug"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        (["--log-without-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "1"}),
        (["--log-with-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "0"}),
        (["--mpi-threads-disable"], {"HOROVOD_MPI_THREADS_DISABLE": "1"}),
        (["--no-mpi-threads-disable"], {"HOROVOD_MPI_THREADS_DISABLE": "0"}),
        (["--tcp"], {"NCCL_IB_DISABLE": "1"}),
        (["--gloo", "--disable-cache", "--no-status", "--verbose"], {}),
        (["--ssh-port", "22", "--network-interface", "eth0", "--mpi-args=-x A"], {}),
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
    options = parse_command_line(["-np", "1", "-prefix-timestamp", "--log-without-timestamp", "true"])
    assert to_job(options).timestamps
    assert options.variables == {"HOROVOD_LOG_HIDE_TIME": "1"}


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


def test_hostfile_of_another_system(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfa slots=2\r\nb\r\n")
    found = job("-np", "3", "--hostfile", str(tmp_path / "hosts"), "true").hosts
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
        (["-np", "2"], "command to run is missing"),
        (["-np", "2", "--"], "command to run is missing"),
        (["-np", "2", "", "train.py"], "command to run is an empty word"),
        (["-np", "2", "--", ""], "command to run is an empty word"),
        (["-np", "0", "true"], "must be at least 1, not 0"),
        (["-np", "-1", "true"], "must be at least 1, not -1"),
        (["-np", "two", "true"], "'two' is not a whole number"),
        (["-np", "1.5", "true"], "'1.5' is not a whole number"),
        (["-np", "2", "--nonsense", "true"], "unknown option --nonsense\n"),
        (["-np", "2", "--fusion-treshold-mb", "3", "true"], "Did you mean --fusion-threshold-mb?"),
        (["-np", "2", "--numproc", "3", "true"], "Did you mean --num-proc"),
        (["-np", "2", "--cycle_time_ms", "3", "true"], "Did you mean --cycle-time-ms?"),
        (["-np", "2", "-y", "true"], "unknown option -y\n"),
        (["-np"], "expected one argument"),
        (["-np", "2", "--gloo", "--mpi", "true"], "argument --mpi: not allowed with argument --gloo"),
        (["-np", "2", "--jsrun", "--launcher", "srun", "true"], "not allowed with argument --jsrun"),
        (["-np", "2", "--launcher", "rsh", "true"], "choose from ssh, mpirun, srun, jsrun"),
        (["-np", "2", "--completion", "csh"], "choose from bash, zsh, fish"),
        (["-np", "2", "--ssh-port", "0", "true"], "must be at least 1, not 0"),
        (["-np", "2", "--ssh-port", "70000", "true"], "must be at most 65535, not 70000"),
        (["-np", "2", "--ssh-args", "-o 'x", "true"], "cannot be split into words"),
        (["-np", "2", "--network-interfaces", "eth0,", "true"], "has an empty name"),
        (["-np", "2", "--min-np", "none", "true"], "'none' is not a whole number"),
        (["-np", "2", "--blacklist-cooldown-range", "1", "4000", "true"], "must be at most 3600"),
        (["-np", "2", "--autotune-gaussian-process-noise", "1.5", "true"], "must be at most 1, not 1.5"),
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
        (["-np", "2", "--start-timeout", "0", "true"], "must be more than 0 seconds"),
        (["-np", "2", "--log-level", "LOUD", "true"], "invalid choice"),
        (["-np", "2", "--hierarchical", "true"], "ambiguous"),
        (["-np", "all", "true"], "'all' is not a whole number"),
        (["-np", "2", "--show-ranks", "a", "true"], "'a' does not name ranks; expected: 0 or 0,4-7"),
        (["-np", "2", "--show-ranks", "3-1", "true"], "does not name ranks"),
        (["-np", "2", "--show-ranks", "1,", "true"], "does not name ranks"),
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
    ("words", "expected"),
    [
        (["--min-np", "1"], ElasticOptions(min_num_proc=1)),
        (["--min-num-proc", "1"], ElasticOptions(min_num_proc=1)),
        (["--min-np", "1", "--max-np", "3"], ElasticOptions(1, max_num_proc=3)),
        (["--min-np", "1", "--max-num-proc", "3"], ElasticOptions(1, max_num_proc=3)),
        (["--host-discovery-script", "s"], ElasticOptions(host_discovery_script="s")),
        (
            ["--host-discovery-script", "s", "--slots", "4"],
            ElasticOptions(host_discovery_script="s", slots_per_host=4),
        ),
        (["--min-np", "1", "--reset-limit", "0"], ElasticOptions(1, reset_limit=0)),
        (
            ["--min-np", "1", "--blacklist-cooldown-range", "1", "2"],
            ElasticOptions(1, blacklist_cooldown_range=[1, 2]),
        ),
        (["--min-np", "1", "--failure-domain", "slot"], ElasticOptions(1, failure_domain="slot")),
        (["--min-np", "1", "--spares", "2"], ElasticOptions(1, spares=2)),
        (["--min-np", "1", "--elastic-events", "e"], ElasticOptions(1, elastic_events="e")),
        (
            ["--min-np", "1", "--state", "s", "--driver-wait", "5"],
            ElasticOptions(1, state="s", driver_wait=5.0),
        ),
        ([], None),
    ],
)
def test_options_of_elastic_jobs(words: list[str], expected: ElasticOptions | None) -> None:
    options = parse_command_line([*words, "-np", "2", "true"])
    assert (options.elastic, options.notices) == (expected, ())


def test_the_time_limit_of_elastic_jobs_is_a_variable() -> None:
    assert environment("--elastic-timeout", "7") == {"HOROVOD_ELASTIC_TIMEOUT": "7"}


def test_options_that_only_elastic_jobs_have_are_in_vain_for_others() -> None:
    given = ["--state", "s", "--max-num-proc", "3", "--failure-domain", "slot", "--elastic-events", "e"]
    options = parse_command_line(["-np", "2", *given, "true"])
    assert options.elastic is None
    assert options.notices == tuple(
        f"{spelling} has no effect without --min-np or --host-discovery-script"
        for spelling in ("--max-np", "--failure-domain", "--elastic-events", "--state")
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc-per-node", "4"], "unknown option --nproc-per-node, which is torchrun's. Here: -np N"),
        (["--nproc_per_node=4"], "unknown option --nproc_per_node, which is torchrun's. Here: -np N"),
        (["--nnodes=2"], "-H server1:4,server2:4"),
        (["--node_rank", "0"], "-H server1:4,server2:4"),
        (["--standalone"], "leave it out"),
        (["--log-dir", "logs"], "--output-filename DIR"),
        (["--log_dir=logs", "--tee", "3"], "--output-filename DIR"),
        (["--tee", "3"], "--output-filename DIR"),
        (["--redirects", "3"], "--show-ranks 0"),
        (["-m", "package"], "python -m MODULE"),
        (["-n", "4"], "unknown option -n, which is mpirun's. Here: -np N"),
        (["-x", "NAME"], "NAME=VALUE in front of horovodrun"),
        (["--num_processes", "4"], "which is accelerate's. Here: -np N"),
    ],
)
def test_spellings_of_other_launchers_are_answered_with_ours(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line([*words, "train.py"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("spelling", foreign.ANSWERS)
def test_every_spelling_of_another_launcher_is_recognised(
    spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, words = foreign.ANSWERS[spelling]
    for word in (spelling, f"{spelling}=1"):
        with pytest.raises(SystemExit):
            parse_command_line(["-np", "2", word, "train.py"])
        expected = f"unknown option {spelling}, which is {program}'s. Here: {words}\n"
        assert expected in capsys.readouterr().err


def test_answers_to_spellings_of_other_launchers_name_options_that_exist() -> None:
    ours = spellings()
    for _, words in foreign.ANSWERS.values():
        words = re.sub(r'="[^"]*"', "", words)  # arguments of another program
        assert set(re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", words)) - {"-m"} <= set(ours), words


@pytest.mark.parametrize("words", [["--check-build"], ["-cb"], ["-v"], ["--version"]])
def test_reports_need_neither_processes_nor_command(words: list[str]) -> None:
    arguments = parse_command_line(words)
    assert arguments.version or arguments.check_build


def test_processes_default_to_the_slots_of_the_hosts() -> None:
    assert job("-H", "a:2,b:3", "true").processes == 5


def test_hosts_of_an_allocation_count_unless_hosts_are_given() -> None:
    allocated = Allocated("a batch system", (HostSlots("a", 2), HostSlots("b", 2)))
    found = to_job(parse_command_line(["true"]), allocated)
    assert (found.processes, found.hosts) == (4, allocated.hosts)
    found = to_job(parse_command_line(["-np", "3", "true"]), allocated)
    assert (found.processes, found.hosts) == (3, allocated.hosts)
    found = to_job(parse_command_line(["-H", "localhost:1", "true"]), allocated)
    assert (found.processes, found.hosts) == (1, (HostSlots("localhost", 1),))


def test_hosts_without_slots_are_no_hosts() -> None:
    with pytest.raises(ConfigError, match="The hosts have no slots"):
        job("-H", "a:0", "true")


def test_ssh_options_reach_the_job() -> None:
    given = ["-p", "2222", "-i", "key", "--ssh-args", "-l me -o 'ProxyCommand=nc %h %p'"]
    ssh = job("-np", "1", *given, "true").ssh
    assert (ssh.port, ssh.identity_file) == (2222, "key")
    assert ssh.arguments == ("-l", "me", "-o", "ProxyCommand=nc %h %p")
    assert job("-np", "1", "true").ssh == SshOptions()


def test_interfaces_are_collected_from_both_spellings() -> None:
    words = ["--network-interfaces", "eth0,ib0", "--network-interface", "eth1", "--network-interface", "ib0"]
    assert job("-np", "1", *words, "true").interfaces == ("eth0", "ib0", "eth1")


def test_abbreviations() -> None:
    assert job("-p22", "-np", "1", "true").ssh.port == 22
    assert job("--ssh-p=22", "-np", "1", "true").ssh.port == 22
    # also --no-status, which is ours: the older option has it
    assert environment("--no-sta") == {"HOROVOD_STALL_CHECK_DISABLE": "1"}
    assert job("--no-stat", "-np", "1", "true").status is False
    assert environment("--log-l=info") == {"HOROVOD_LOG_LEVEL": "INFO"}
    assert job("-prefix", "-np", "1", "true").timestamps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--verbose=1"], "argument --verbose: ignored explicit argument '1'"),
        (["--blacklist-cooldown-range=1", "2"], "argument --blacklist-cooldown-range: expected 2 arguments"),
        (["--mpi-args", "--mca"], "argument --mpi-args: expected one argument"),
        (["-p", "--verbose"], "argument -p/--ssh-port: expected one argument"),
        (["-vx"], "argument -v/--version: ignored explicit argument 'x'"),
        (["--bogus", "-p", "x"], "argument -p/--ssh-port: 'x' is not a whole number"),
        (["-np2"], "unknown option -np2. Did you mean -np or -p?"),
    ],
)
def test_values_where_none_is_and_none_where_one_is(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_command_line([*words, "true"])
    assert f"horovodrun: {message}\n" in capsys.readouterr().err


def test_a_value_that_begins_with_a_dash_and_is_no_option() -> None:
    assert job("-np", "1", "--mpi-args", "--mca x y", "true").arguments == ("--mca", "x", "y")
    assert job("-np", "1", "--output-filename", "-", "true").output_directory == Path("-")


def test_options_of_settings_are_what_the_settings_say() -> None:
    options = spellings()
    for setting in SETTINGS.values():
        flag = setting.flag
        if flag is None:
            continue
        option = options[flag.spelling]
        assert (option.variable, option.key, option.is_switch) == (
            setting.variables[0], flag.key, not flag.metavar,
        )  # fmt: skip
        assert not set("`[]") & set(option.help), "a line of --help is no Markdown"
        if flag.off:
            assert (options[flag.off].variable, options[flag.off].value) == (setting.variables[0], 0)


# Every option of the reference, hidden spellings included.
_DOCUMENTED = """
-h --help -v --version -np --num-proc -cb --check-build --disable-cache --start-timeout
--network-interfaces --network-interface --output-filename --verbose --config-file -p --ssh-port -i
--ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity --hierarchical-allreduce
--no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce
--no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
--autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
--blacklist-cooldown-range --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
--no-stall-check --stall-check --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp
--binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level
--log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp
-prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
--host-discovery-script --gloo --mpi --jsrun
"""


def test_every_option_of_the_reference_is_there() -> None:
    documented = set(_DOCUMENTED.split())
    assert documented <= set(spellings())
    ours = {spelling for spelling, option in spellings().items() if option.ours}
    assert set(spellings()) - documented == ours


def test_ranks_that_are_shown_are_ranks_of_the_job() -> None:
    assert job("-np", "4", "true").shown is None
    assert job("-np", "4", "--show-ranks", "0,2-3", "true").shown == frozenset({0, 2, 3})
    with pytest.raises(ConfigError, match="--show-ranks names rank 4, but the last of 4 is 3"):
        job("-np", "4", "--show-ranks", "0,2-4", "true")
    with pytest.raises(ConfigError, match="names rank 999999999"):
        job("-np", "4", "--show-ranks", "0-999999999", "true")


@pytest.mark.parametrize("row", WITHOUT_EFFECT, ids=lambda row: row.variables[0])
def test_help_says_of_every_option_without_effect_that_it_has_none(row: Ineffective) -> None:
    for variable in (*row.variables, *row.further):
        for option in every_option():
            if option.variable == variable and option.help:
                assert option.help.startswith("no effect")
    given = [spelling for spelling in row.options if "..." not in spelling]
    assert {spellings()[spelling].variable for spelling in given} <= set(row.variables)


def test_options_of_autotuning_are_accepted() -> None:
    assert environment("--autotune", "--autotune-log-file", "f", "--autotune-warmup-samples", "3") == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "f",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "3",
    }
    assert environment("--no-autotune", "--autotune-log-file", "f") == {"HOROVOD_AUTOTUNE": "0"}
    assert environment("--autotune-gaussian-process-noise", "0.5") == {}


def test_rank_map_shows_where_every_rank_would_run() -> None:
    assert rank_map(job("-H", "a:1,b:2", "true")).splitlines() == [
        "rank  host  local rank  cross rank",
        "0     a     0 of 1      0 of 2",
        "1     b     0 of 2      1 of 2",
        "2     b     1 of 2      0 of 1",
    ]


def test_the_status_line_is_left_to_the_terminal_unless_it_is_decided() -> None:
    assert job("-np", "1", "true").status is None
    assert job("-np", "1", "--status", "true").status is True
    assert job("-np", "1", "--no-status", "true").status is False
