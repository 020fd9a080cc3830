"""The compatibility names under `horovod.common`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod import errors
from horovod.common import basics, exceptions, process_sets, util
from horovod.runtime import lifecycle, process_set


def test_exceptions_are_those_of_the_package() -> None:
    assert {"HorovodInternalError", "HostsUpdatedInterrupt"} <= set(exceptions.__all__)
    for name in exceptions.__all__:
        assert getattr(exceptions, name) is getattr(errors, name)


def test_process_sets_are_those_of_the_package() -> None:
    assert process_sets.__all__
    for name in process_sets.__all__:
        assert getattr(process_sets, name) is getattr(process_set, name)
    assert process_sets.global_process_set.process_set_id == 0


def test_cached_functions_run_once_per_argument() -> None:
    calls: list[tuple[int, int]] = []

    @util._cache
    def add(a: int, b: int = 1) -> int:
        calls.append((a, b))
        return a + b

    assert [add(1), add(1), add(1, b=2), add(1, b=2)] == [2, 2, 3, 3]
    assert calls == [(1, 1), (1, 2)]


def test_env_sets_and_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_TEST_A", "before")
    monkeypatch.delenv("FARANDOLE_TEST_B", raising=False)

    def inside() -> None:
        with util.env(FARANDOLE_TEST_A="in", FARANDOLE_TEST_B="in", FARANDOLE_TEST_C=None):
            assert os.environ["FARANDOLE_TEST_A"] == os.environ["FARANDOLE_TEST_B"] == "in"
            assert "FARANDOLE_TEST_C" not in os.environ
            raise KeyError

    with pytest.raises(KeyError):
        inside()
    assert os.environ["FARANDOLE_TEST_A"] == "before"
    assert "FARANDOLE_TEST_B" not in os.environ


def test_average_compatibility() -> None:
    resolve = util.get_average_backwards_compatibility_fun(SimpleNamespace(Average=0, Sum=1))
    assert resolve(None, None) == 0
    assert resolve(5, None) == 5
    with pytest.warns(DeprecationWarning, match="average"):
        assert resolve(None, True) == 0
    with pytest.warns(DeprecationWarning, match="average"):
        assert resolve(None, False) == 1
    with pytest.raises(ValueError):
        resolve(0, True)


def test_powers_of_two() -> None:
    assert [n for n in range(10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]


def test_split_list_puts_longer_chunks_first() -> None:
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert util.split_list([1], 3) == [[1], [], []]


def test_versions_compare_by_number() -> None:
    assert util.is_version_greater_equal_than("2.10.0", "2.9.1")
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.13.0")
    assert not util.is_version_greater_equal_than("1.9", "1.10.0")
    for wrong in (("2.0.0", "2.0"), (2, "2.0.0"), ("2.0.0", None)):
        with pytest.raises(ValueError):
            util.is_version_greater_equal_than(*wrong)


def test_a_missing_extension_is_an_import_error(tmp_path: Path) -> None:
    module = tmp_path / "__init__.py"
    path = Path(util.get_extension_full_path(str(module), "lib"))
    assert path == tmp_path / f"lib{util.get_ext_suffix()}"
    with pytest.raises(ImportError):
        util.check_extension("horovod.x", "HOROVOD_WITH_X", str(module), "lib")
    path.touch()
    util.check_extension("horovod.x", "HOROVOD_WITH_X", str(module), "lib")


def test_installed_version_matters_only_after_a_failed_import() -> None:
    util.check_installed_version("torch", "9.9.9")
    with pytest.raises(errors.HorovodVersionMismatchError):
        util.check_installed_version("torch", "9.9.9", ImportError("x"))


def test_iterables() -> None:
    assert util.is_iterable([])
    assert not util.is_iterable(3)


def test_extension_available_answers_without_raising() -> None:
    assert util.extension_available("no_such_framework") is False


def test_extensions_can_be_asked_for() -> None:
    found = {name: util.extension_available(name) for name in util.EXTENSIONS}
    assert found == {"tensorflow": True, "torch": True, "mxnet": False}


def test_capabilities_without_a_world() -> None:
    b = basics.HorovodBasics(__file__, "lib")
    assert b.gloo_built() is True
    assert type(b.nccl_built()) is int
    assert b.nccl_built() == 0
    assert b.mpi_built() is (importlib.util.find_spec("mpi4py") is not None)
    for name in ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"):
        assert getattr(util, name)() == getattr(b, name)(), name
    for query in (b.mpi_enabled, b.ddl_built, b.ccl_built, b.rocm_built):
        assert query() is False
    assert b.cuda_built() is True  # every build serves devices, where there is a driver
    assert util.gloo_built(verbose=True) is True
    with pytest.raises(ValueError):
        b.mpi_threads_supported()
    assert b.HOROVOD_PROCESS_SET_ERROR_EXISTING_SET == -6


def test_init_checks_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[None] = []
    monkeypatch.setattr(lifecycle, "start", lambda **given: started.append(None))
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")
    b = basics.HorovodBasics()
    with pytest.raises(ValueError):
        b.init(comm=object())
    with pytest.raises(ValueError):
        b.init(process_sets="static")
    assert started == []
    b.init()
    b.init([])
    b.init([0, 1])
    b.init(process_sets="Dynamic")
    assert os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"
    assert len(started) == 4
