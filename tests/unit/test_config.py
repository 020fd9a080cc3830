from __future__ import annotations

import dataclasses
import logging

import pytest

from horovod.config import SETTINGS, Config, value_of
from horovod.errors import ConfigError


def test_empty_environment_gives_the_defaults() -> None:
    assert Config.from_environ({}) == Config()
    assert (
        Config.from_environ({name: "" for each in SETTINGS.values() for name in each.variables}) == Config()
    )
    assert Config().fusion_threshold_bytes == 134217728


@pytest.mark.parametrize(
    ("variable", "text", "field", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "0", "fusion_threshold_bytes", 0),
        ("HOROVOD_CYCLE_TIME", "3.5", "cycle_time_s", 0.0035),
        ("HOROVOD_CACHE_CAPACITY", "0", "cache_capacity", 0),
        ("HOROVOD_DISABLE_GROUP_FUSION", "1", "disable_group_fusion", True),
        ("HOROVOD_STALL_CHECK_DISABLE", "2", "stall_check_disable", True),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "5", "stall_warning_s", 5.0),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "90", "stall_shutdown_s", 90.0),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "7", "operation_timeout_s", 7.0),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "7", "init_timeout_s", 7.0),
        ("HOROVOD_START_TIMEOUT", "9", "init_timeout_s", 9.0),
        ("HOROVOD_FAILURE_PATIENCE_SECONDS", "0", "failure_patience_s", 0.0),
        ("HOROVOD_HEARTBEAT_TIMEOUT_SECONDS", "8", "heartbeat_timeout_s", 8.0),
        ("HOROVOD_HEARTBEAT_TIMEOUT_SECONDS", "0", "heartbeat_timeout_s", 0.0),
        ("HOROVOD_HEARTBEAT_WARNING_SECONDS", "2", "heartbeat_warning_s", 2.0),
        ("HOROVOD_LOG_LEVEL", "TRACE", "log_level", 0),
        ("HOROVOD_LOG_LEVEL", "loud", "log_level", 3),
        ("HOROVOD_LOG_HIDE_TIME", "1", "log_hide_time", True),
        ("HOROVOD_DIRECT_COPIES", "0", "direct_copies", False),
        ("HOROVOD_DEVICE_PER_RANK", "1", "device_per_rank", True),
        ("HOROVOD_CONTROLLER", "MPI", "controller", "mpi"),
        ("HOROVOD_CPU_OPERATIONS", "MPI", "cpu_operations", "mpi"),
        ("HOROVOD_CPU_OPERATIONS", "pack.module:Class", "cpu_operations", "pack.module:Class"),
        ("HOROVOD_GPU_OPERATIONS", " nccl ", "gpu_operations", "NCCL"),
        ("HOROVOD_GPU_OPERATIONS", "Staged", "gpu_allreduce", "STAGED"),
        ("HOROVOD_GPU_ALLREDUCE", "NCCL", "gpu_allreduce", "NCCL"),
        ("HOROVOD_GPU_ALLREDUCE", "NCCL", "gpu_operations", ""),
        ("HOROVOD_GPU_ALLGATHER", "MPI", "gpu_allgather", "MPI"),
        ("HOROVOD_GPU_BROADCAST", "mpi", "gpu_broadcast", "MPI"),
        ("HOROVOD_GPU_ALLTOALL", "staged", "gpu_alltoall", "STAGED"),
        ("HOROVOD_GPU_ALLGATHER", "peer", "gpu_allgather", "PEER"),
        ("HOROVOD_GPU_REDUCESCATTER", "nccl", "gpu_reducescatter", "NCCL"),
        ("HOROVOD_NUM_NCCL_STREAMS", "4", "num_nccl_streams", 4),
        ("HOROVOD_NUM_NCCL_STREAMS", "0", "num_nccl_streams", 1),
        ("HOROVOD_NUM_NCCL_STREAMS", "-3", "num_nccl_streams", 1),
        ("HOROVOD_ENABLE_ASYNC_COMPLETION", "1", "async_completion", True),
        ("HOROVOD_MPI_THREADS_DISABLE", "1", "mpi_threads_disable", True),
        ("HOROVOD_THREAD_AFFINITY", "0,4, 8", "thread_affinity", (0, 4, 8)),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "-1", "dynamic_process_sets", True),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "on", "dynamic_process_sets", False),
        ("HOROVOD_TIMELINE", "t.json", "timeline", "t.json"),
        ("HOROVOD_TIMELINE", "DYNAMIC", "timeline", "DYNAMIC"),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles", True),
        ("HOROVOD_ELASTIC", "1", "elastic", True),
        ("HOROVOD_GLOO_IFACE", "eth0", "network_interface", "eth0"),
        ("HOROVOD_NETWORK_STREAMS", "16", "network_streams", 16),
        ("HOROVOD_NETWORK_PROTECTION", "full", "network_protection", "full"),
        ("HOROVOD_TRANSPORT_GROUPS", "single", "transport_groups", "single"),
        ("HOROVOD_JOB_ID", "abc", "job_id", "abc"),
        ("HOROVOD_EPOCH", "3", "epoch", "3"),
    ],
)
def test_variable_sets_its_field(variable: str, text: str, field: str, expected: object) -> None:
    assert getattr(Config.from_environ({variable: text}), field) == pytest.approx(expected)


def test_every_field_is_documented_by_sentences() -> None:
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Config)}
    assert [name for name, setting in SETTINGS.items() if not setting.doc.endswith(".")] == []


def test_nothing_contradicts_the_switch_of_the_stall_check() -> None:
    config = Config.from_environ({"HOROVOD_STALL_CHECK_DISABLE": "1"})
    assert (config.stall_warning_s, config.stall_shutdown_s) == (0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("0", False), ("-1", False), (" 12 ", True), ("true", False), ("yes", False), ("1x", True)],
)
def test_switch_is_read_as_a_number(text: str, expected: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Config.from_environ({"HOROVOD_LOG_HIDE_TIME": text}).log_hide_time is expected
    is_number = text.strip().lstrip("-").isdecimal()
    assert ("HOROVOD_LOG_HIDE_TIME" in caplog.text) is not is_number


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_CYCLE_TIME", "(None,)"),
        ("HOROVOD_CYCLE_TIME", "nan"),
        ("HOROVOD_CYCLE_TIME", "-1"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "inf"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "0"),
        ("HOROVOD_START_TIMEOUT", "soon"),
        ("HOROVOD_GPU_OPERATIONS", "DDL"),
        ("HOROVOD_GPU_ALLREDUCE", "gloo"),
        ("HOROVOD_NUM_NCCL_STREAMS", "many"),
        ("HOROVOD_THREAD_AFFINITY", "0,a"),
        ("HOROVOD_TRANSPORT_GROUPS", "host"),
        ("HOROVOD_NETWORK_STREAMS", "0"),
        ("HOROVOD_NETWORK_PROTECTION", "yes"),
        ("HOROVOD_NETWORK_STREAMS", "17"),
    ],
)
def test_nonsense_is_an_error_that_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        Config.from_environ({variable: text})
    assert caught.value.variable == variable


def test_a_collective_in_device_memory_may_go_another_way_than_all_of_them() -> None:
    config = Config.from_environ({"HOROVOD_GPU_OPERATIONS": "nccl", "HOROVOD_GPU_BROADCAST": "MPI"})
    ways = {name: getattr(config, f"gpu_{name}") for name in ("allreduce", "allgather", "broadcast")}
    assert ways == {"allreduce": "NCCL", "allgather": "NCCL", "broadcast": "MPI"}
    with pytest.raises(ConfigError, match=r"HOROVOD_GPU_ALLTOALL.*choose from NCCL, STAGED, PEER, MPI"):
        Config.from_environ({"HOROVOD_GPU_ALLTOALL": "CCL"})
    with pytest.raises(ConfigError, match="HOROVOD_GPU_OPERATIONS"):
        Config.from_environ({"HOROVOD_GPU_OPERATIONS": "CCL"})


def test_one_setting_can_be_read_alone() -> None:
    environ = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "7", "HOROVOD_CYCLE_TIME": "soon", "HOROVOD_LOG_LEVEL": ""}
    assert value_of("init_timeout_s", environ) == 7
    assert value_of("log_level", environ) == Config().log_level
    with pytest.raises(ConfigError, match="HOROVOD_CYCLE_TIME: 'soon' is not a number"):
        value_of("cycle_time_s", environ)


def test_stall_shutdown_before_the_warning_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        config = Config.from_environ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"})
    assert config.stall_shutdown_s == 0
    assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=10 is ignored" in caplog.text


@pytest.mark.parametrize(
    ("given", "expected", "named"),
    [
        ({}, (3, 5, 30, 30), ""),
        ({"GLOO_TIMEOUT_SECONDS": 7}, (3, 5, 7, 7), ""),
        ({"GLOO_TIMEOUT_SECONDS": 4.5}, (1.5, 3, 4.5, 4.5), ""),
        ({"GLOO_TIMEOUT_SECONDS": 2}, (1.5, 3, 4, 4), "HOROVOD_GLOO_TIMEOUT_SECONDS=2"),
        ({"HEARTBEAT_TIMEOUT_SECONDS": 3}, (1.5, 3, 30, 30), ""),
        ({"HEARTBEAT_TIMEOUT_SECONDS": 1}, (1.5, 3, 30, 30), "HOROVOD_HEARTBEAT_TIMEOUT_SECONDS=1"),
        ({"HEARTBEAT_TIMEOUT_SECONDS": 60}, (3, 60, 90, 90), ""),
        ({"HEARTBEAT_TIMEOUT_SECONDS": 0}, (3, 0, 30, 30), ""),
        (
            {"HEARTBEAT_TIMEOUT_SECONDS": 60, "GLOO_TIMEOUT_SECONDS": 30},
            (3, 15, 30, 30),
            "HOROVOD_GLOO_TIMEOUT_SECONDS=30",
        ),
        ({"HEARTBEAT_WARNING_SECONDS": 20}, (2.5, 5, 30, 30), "HOROVOD_HEARTBEAT_WARNING_SECONDS=20"),
        ({"START_TIMEOUT": 9}, (3, 5, 9, 9), ""),
        ({"START_TIMEOUT": 15}, (3, 5, 15, 15), ""),
        (
            {"START_TIMEOUT": 9, "GLOO_TIMEOUT_SECONDS": 40},
            (3, 5, 40, 40),
            "HOROVOD_START_TIMEOUT=9",
        ),
    ],
)
def test_time_limits_keep_their_order_and_a_contradiction_is_named(
    given: dict[str, float], expected: tuple[float, ...], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = Config.from_environ({f"HOROVOD_{name}": str(value) for name, value in given.items()})
    limits = (
        config.heartbeat_warning_s,
        config.heartbeat_timeout_s,
        config.operation_timeout_s,
        config.init_timeout_s,
    )
    assert limits == pytest.approx(expected)
    assert (named in caplog.text) if named else not caplog.text
