from __future__ import annotations

import copy
import pickle

import pytest

from horovod import errors

EXAMPLES: list[Exception] = [
    errors.ConfigError("bad", variable="HOROVOD_SIZE"),
    errors.NotInitializedError(),
    errors.InvalidArgumentError("bad", tensor="allreduce.x"),
    errors.DuplicateNameError("again", tensor="allreduce.x"),
    errors.ProcessSetError("differ"),
    errors.HorovodInternalError("boom", rank=1, host="a", tensor="allreduce.x"),
    errors.MismatchError("differ", tensor="allreduce.x", ranks=[0, 1], said=["[2]", "[3]"]),
    errors.PeerLostError("gone", rank=3, host="b"),
    errors.CollectiveTimeout("late", tensor="allreduce.x", missing=[1, 2], waited_s=30.0),
    errors.ShutdownError("over", rank=1, host="a", tensor="allreduce.x"),
    errors.BackendError("nccl", library="nccl", code=5),
    errors.RendezvousError("nobody", missing=[1], waited_s=2.0, rank=1, host="a"),
    errors.StoreTimeout("nothing", keys=["a", "b"], waited_s=1.0),
    errors.AuthenticationError("who"),
    errors.VersionError("differ", own="0.1.0", other="0.2.0"),
    errors.ReplicasDifferError("differ", ranks=[1], tensors=["fc.weight"]),
    errors.GradientChangedError("changed", tensors=["fc.weight"]),
    errors.LaunchError("no"),
    errors.DataStoreError("cannot write", path="/data/runs"),
    errors.WorkerFailed("dead", rank=1, host="a", exit_code=-9, last_lines=["one", "two"]),
    errors.HostsUpdatedInterrupt(True),
    errors.HorovodVersionMismatchError("torch", "2.0", "1.0"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_survives_pickle_and_copy(error: Exception) -> None:
    for restored in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(restored) is type(error)
        assert str(restored) == str(error)
        assert restored.__dict__ == error.__dict__


def test_every_exported_exception_has_an_example() -> None:
    exported = {getattr(errors, name) for name in errors.__all__}
    classes = {item for item in exported if isinstance(item, type)}
    assert classes - {type(error) for error in EXAMPLES} == {errors.HorovodError}


def test_public_names_are_exactly_those_listed() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if not name.startswith("_") and getattr(value, "__module__", "horovod.errors") == "horovod.errors"
    }
    assert defined - {"annotations", "Sequence", "Any", "sys", "warnings"} == set(errors.__all__)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("invalid_argument", errors.InvalidArgumentError),
        ("duplicate", errors.DuplicateNameError),
        ("mismatch", errors.MismatchError),
        ("peer_lost", errors.PeerLostError),
        ("timeout", errors.CollectiveTimeout),
        ("shutdown", errors.ShutdownError),
        ("unsupported", errors.HorovodInternalError),
        ("backend", errors.BackendError),
        ("internal", errors.HorovodInternalError),
    ],
)
def test_core_code_becomes_its_exception(code: str, expected: type[Exception]) -> None:
    error = errors.from_core(code, "text", 2, "allreduce.x", [1, 3], 4.5)
    assert type(error) is expected
    named = " (tensor allreduce.x)" if code == "mismatch" else ""
    assert str(error) == "text" + named
    assert code in errors.CORE_CODES


def test_every_core_code_is_mapped() -> None:
    for code in errors.CORE_CODES:
        assert "unknown" not in str(errors.from_core(code, "text"))
    unknown = errors.from_core("novel", "text")
    assert type(unknown) is errors.HorovodInternalError
    assert "novel" in str(unknown)


def test_core_data_arrives_as_attributes() -> None:
    lost = errors.from_core("peer_lost", "gone", 2, host="b")
    assert isinstance(lost, errors.PeerLostError)
    assert (lost.rank, lost.host) == (2, "b")
    nothing = {"rank": None, "host": None, "tensor": None, "missing": (), "waited_s": 0.0}
    assert vars(errors.from_core("peer_lost", "gone")) == nothing
    said = {"tensor": "allreduce.x", "missing": (1, 3), "waited_s": 4.5}
    late = errors.from_core("timeout", "late", -1, "allreduce.x", [1, 3], 4.5)
    assert vars(late) == {**said, "rank": None, "host": None}
    lost = errors.from_core("peer_lost", "lost", 1, "allreduce.x", [1, 3], 4.5, "a")
    assert vars(lost) == {**said, "rank": 1, "host": "a"}
    differ = errors.from_core("mismatch", "differ", -1, "allreduce.x", [0, 2])
    assert isinstance(differ, errors.MismatchError)
    assert differ.ranks == (0, 2)


def test_types_that_scripts_catch() -> None:
    assert issubclass(errors.HorovodInternalError, RuntimeError)
    assert issubclass(errors.LaunchError, RuntimeError)
    assert issubclass(errors.NotInitializedError, ValueError)
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.HorovodVersionMismatchError, ImportError)
    assert issubclass(errors.HostsUpdatedInterrupt, RuntimeError)
    assert not issubclass(errors.HostsUpdatedInterrupt, errors.HorovodError)
    assert str(errors.NotInitializedError()) == "Horovod has not been initialized; use hvd.init()."


def test_what_is_deprecated_is_said_at_the_line_of_the_script() -> None:
    ours = {"__name__": "horovod.torch.some", "deprecated": errors.deprecated}
    exec("def inner(): deprecated('old')\ndef outer(): inner()", ours)
    with pytest.warns(DeprecationWarning, match="old") as warned:
        ours["outer"]()  # type: ignore[operator]
    assert [each.filename for each in warned] == [__file__]
