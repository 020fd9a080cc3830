"""The command line: what it means, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.bench import requirements
from horovod.bench.operations import OPERATIONS, unserved
from horovod.bench.options import parse
from horovod.bench.requirements import unmet


def test_defaults() -> None:
    options = parse([])
    assert options.operations == ("allreduce",)
    assert (options.sizes[0], options.sizes[-1], len(options.sizes)) == (4, 64 << 20, 13)
    assert (options.dtype, options.op, options.rounds, options.asynchronous) == ("float32", "sum", 3, 0)
    assert (options.compare, options.process_set, options.processes) == ((), (), None)


def test_everything_can_be_chosen() -> None:
    options = parse(
        [
            *("-np", "4", "allgather", "broadcast", "--min", "1K", "--max", "4K", "--factor", "2"),
            *("--dtype", "float16", "--op", "max", "--rounds", "5", "--time-s", "0.5"),
            *("--process-set", "2,0", "--asynchronous", "3", "--tensors", "9", "--compare", "gloo,mpi"),
            *("--json", "a.json", "--plot", "a.png", "--progress", "none"),
        ]
    )
    assert options.operations == ("allgather", "broadcast")
    assert options.sizes == (1024, 2048, 4096)
    assert (options.dtype, options.op, options.processes) == ("float16", "max", 4)
    assert (options.rounds, options.time_s, options.tensors, options.asynchronous) == (5, 0.5, 9, 3)
    assert (options.process_set, options.compare) == ((0, 2), ("gloo", "mpi"))
    assert (options.json, options.plot, options.progress) == (Path("a.json"), Path("a.png"), "none")


def test_listed_sizes_keep_their_order() -> None:
    assert parse(["--sizes", "1M, 4,64K"]).sizes == (1 << 20, 4, 64 << 10)


def test_all_means_every_operation_and_asynchronous_leaves_the_barrier_out() -> None:
    assert parse(["all"]).operations == tuple(OPERATIONS)
    assert parse(["all", "--asynchronous", "2"]).operations == tuple(OPERATIONS)[:-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("alreduce", "operation 'alreduce' does not exist; choose from allreduce"),
        ("--dtype float33", "--dtype 'float33' does not exist; choose from float32"),
        ("--op avg", "--op 'avg' does not exist; choose from sum, average"),
        ("--compare gloo,nccl", "--compare 'nccl' does not exist; choose from gloo, mpi"),
        ("--min 4T", "argument --min: '4T' is no size"),
        ("--sizes 4,x", "--sizes: 'x' is no size"),
        ("--sizes ,", "--sizes: no size was given"),
        ("--sizes 4 --max 8", "--sizes and --max exclude each other"),
        ("--min 1M --max 1K", "--min, --max: 1048576 bytes to 1024 bytes: the smallest must not be larger"),
        ("--factor 1", "--factor: 1 must be above 1"),
        ("--factor two", "argument --factor: 'two' is not a number"),
        ("--rounds 0", "argument --rounds: must be at least 1, not 0"),
        ("--rounds many", "argument --rounds: 'many' is not a whole number"),
        ("--time-s 0", "--time-s 0: must be above 0"),
        ("--process-set 0,a", "--process-set: 'a' is no rank"),
        ("--process-set 1,1", "--process-set 1,1: a rank is named twice"),
        ("reducescatter --op max", "--op max: reducescatter has sum and average only"),
        ("--op adasum --dtype int8", "--op adasum: it has floating-point types only, not int8"),
        ("grouped_allreduce --op adasum", "--op adasum: grouped_allreduce has no adasum"),
        ("barrier --asynchronous 2", "--asynchronous: a barrier is always waited for"),
        ("--frobnicate", "unrecognized arguments: --frobnicate"),
    ],
)
def test_wrong_value_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    told = capsys.readouterr()
    assert told.err.startswith("horovod.bench: ")
    assert said in told.err
    assert "--help" in told.err
    assert told.out == ""


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--help"]])
def test_other_ranks_say_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words, silent=True)
    assert not caught.value.code  # the rank that speaks also fails
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_help_shows_examples_and_explains_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    for word in ("horovodrun -np 2 python -m horovod.bench", "busbw", "--compare", *OPERATIONS):
        assert word in told


def test_examples_of_the_help_are_right() -> None:
    from horovod.bench.options import _EPILOG

    examples = [
        line.split("horovod.bench")[1].split("   ")[0] for line in _EPILOG.splitlines() if "-np" in line
    ]
    assert len(examples) == 7
    for words in examples:
        parse(words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--process-set 0,2", "--process-set: there is no rank 2 among 2 processes"),
        ("--json nowhere/a.json", "--json nowhere/a.json: there is no folder "),
        ("--plot .", "--plot .: cannot be written"),
        ("--compare gloo --op average", "--compare gloo: gloo has no average; it has sum"),
        ("--compare gloo --dtype int16", "--compare gloo: gloo has no allreduce of int16"),
        ("--compare mpi --dtype bfloat16", "--compare mpi: mpi has no allreduce of bfloat16"),
        ("--sizes 4000000G", "4e+06 GiB needs about "),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_starts(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "_installed", lambda module: True)
    monkeypatch.setattr(requirements, "find_mpirun", lambda: "mpirun")
    monkeypatch.setattr("horovod.bench.plot.missing", lambda: "")
    assert unmet(parse(words.split()), 2, 2).startswith(said)


@pytest.mark.parametrize(
    ("words", "gone", "said"),
    [
        ("", "torch", "PyTorch is not installed"),
        ("--compare mpi", "mpi4py", "--compare mpi needs mpi4py, which is not installed: pip install mpi4py"),
        ("--compare mpi", "mpirun", "--compare mpi needs mpirun, which is not in PATH"),
        (
            "--plot a.png",
            "matplotlib",
            "--plot needs matplotlib, which is not installed: pip install matplotlib",
        ),
    ],
)
def test_missing_library_is_named_with_what_to_install(
    words: str, gone: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "_installed", lambda module: module != gone)
    monkeypatch.setattr(requirements, "find_mpirun", lambda: None if gone == "mpirun" else "mpirun")
    monkeypatch.setattr("horovod.bench.plot.missing", lambda: gone if gone == "matplotlib" else "")
    assert said in unmet(parse(words.split()), 2, 2)


def test_nothing_is_missing_for_a_plain_run() -> None:
    assert unmet(parse(["--max", "4K"]), 2, 2) == ""


def test_adasum_of_three_ranks_is_refused() -> None:
    assert unmet(parse(["--op", "adasum"]), 3, 3) == "--op adasum: 3 ranks are no power of two"
    assert unmet(parse(["--op", "adasum", "--process-set", "0,2"]), 3, 3) == ""


def test_moving_bytes_needs_no_type() -> None:
    assert unserved("mpi", "broadcast", "bfloat16", "average") == ""
    assert unserved("gloo", "alltoall", "bool", "sum") == ""
    assert unserved("gloo", "barrier", "int16", "average") == ""
