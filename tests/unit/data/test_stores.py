"""Stores: their paths, what they write, and that they can be sent to ranks. HDFS by its paths only."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from horovod.errors import DataStoreError, InvalidArgumentError  # noqa: E402
from horovod.spark.common.store import (  # noqa: E402
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FilesystemStore]:
    if request.param == "file":
        yield FilesystemStore(str(tmp_path))
        return
    yield FilesystemStore("memory://store")
    if (files := fsspec.filesystem("memory")).exists("/store"):
        files.rm("/store", recursive=True)


def test_the_class_follows_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(Store.create("hdfs://host:9000/a")) is HDFSStore
    assert type(Store.create("dbfs:/a".replace("dbfs:", "/dbfs"))) is FilesystemStore
    assert type(Store.create("memory://a")) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17")
    assert type(Store.create("dbfs:/a")) is DBFSLocalStore
    assert type(Store.create("s3://bucket/a")) is FilesystemStore
    assert FilesystemStore.matches("s3://bucket/a")
    assert not FilesystemStore.matches("nothing://a")


@pytest.mark.parametrize("given", ["{}", "{}/", "file://{}", "file:{}"])
def test_paths_of_a_folder(tmp_path: Path, given: str) -> None:
    store = FilesystemStore(given.format(tmp_path))
    root = f"file://{tmp_path}"
    assert store.prefix_path == root
    assert store.get_train_data_path() == f"{root}/intermediate_train_data"
    assert store.get_val_data_path(0) == f"{root}/intermediate_val_data.0"
    assert store.get_test_data_path(12) == f"{root}/intermediate_test_data.12"
    assert store.get_runs_path() == f"{root}/runs"
    assert store.get_run_path("r") == f"{root}/runs/r"
    assert store.get_checkpoint_path("r") == f"{root}/runs/r/checkpoint"
    assert store.get_logs_path("r") == f"{root}/runs/r/logs"
    assert store.get_localized_path(root) == str(tmp_path)
    assert store.get_full_path_fn()(f"{tmp_path}/x") == f"{root}/x"
    metadata = store.get_data_metadata_path(f"{root}/data/")
    assert metadata.startswith(f"{tmp_path}/data_")
    assert metadata.endswith("_cached_metadata.pkl")


def test_paths_that_are_given_are_used(tmp_path: Path) -> None:
    store = FilesystemStore(
        str(tmp_path),
        train_path=f"{tmp_path}/t",
        runs_path="memory://runs",
        checkpoint_filename="model.keras",
    )
    assert store.get_train_data_path(1) == f"file://{tmp_path}/t.1"
    assert store.get_checkpoint_path("r") == "memory://runs/r/model.keras"


def test_a_relative_path_is_one_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert FilesystemStore("a b").prefix_path == f"file://{tmp_path}/a b"
    assert FilesystemStore("a b").get_localized_path("x") == f"{tmp_path}/x"


def test_runs_that_are_not_kept_have_no_checkpoint(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path), save_runs=False)
    assert not store.saving_runs()
    assert store.get_checkpoint_path("r") is None
    assert store.get_logs_path("r") is None


def test_files_are_written_as_a_whole_and_read(store: FilesystemStore) -> None:
    path = f"{store.prefix_path}/a/b.txt"
    assert not store.exists(path)
    store.write_text(path, "first")
    store.write_text(path, "sécond")
    assert store.read(path) == "sécond".encode()
    assert [Path(file).name for file in store.fs.find(store.get_localized_path(store.prefix_path))] == [
        "b.txt"
    ]
    store.remove(f"{store.prefix_path}/a")
    assert not store.exists(path)
    store.remove(path)


def test_what_fails_in_the_middle_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemStore(str(tmp_path))
    path = f"{store.prefix_path}/b.txt"
    store.write_text(path, "first")

    def half(place: str, content: bytes) -> None:
        Path(place).write_bytes(content[:3])
        raise OSError("no space left")

    monkeypatch.setattr(store.fs, "pipe_file", half)
    with pytest.raises(DataStoreError, match=r"b\.txt as .* on .*: OSError: no space left\. Let this user"):
        store.write_text(path, "second")
    assert [each.name for each in tmp_path.iterdir()] == ["b.txt"]
    assert store.read(path) == b"first"


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = FilesystemStore(f"{tmp_path}/file/store")
    with pytest.raises(DataStoreError, match=r"Cannot write file://.*/file/store/") as caught:
        store.check_writable(store.prefix_path)
    assert isinstance(caught.value, OSError)
    assert pickle.loads(pickle.dumps(caught.value)).path == caught.value.path
    FilesystemStore(str(tmp_path)).check_writable(f"{tmp_path}/new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_run_syncs_what_has_changed(store: FilesystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = store.sync_fn("r")
    put: list[str] = []
    whole = store.fs.put_file

    def noted(file: str, place: str, **options: Any) -> None:
        put.append(Path(file).name)
        whole(file, place, **options)

    monkeypatch.setattr(store.fs, "put_file", noted)
    with store.get_local_output_dir_fn("keras/1")() as name:
        folder = Path(name)
        (folder / "logs" / "train").mkdir(parents=True)
        (folder / "checkpoint").write_text("epoch 1")
        (folder / "logs" / "train" / "events").write_text("a")
        sync(name)
        sync(name)
        (folder / "checkpoint").write_text("epoch 22")
        (folder / "last.ckpt").write_text("x")
        sync(name)
    assert not folder.exists()
    assert put == ["checkpoint", "events", "checkpoint", "last.ckpt"]
    assert store.read(store.get_checkpoint_path("r") or "") == b"epoch 22"
    assert store.read(f"{store.get_logs_path('r')}/train/events") == b"a"
    assert store.get_checkpoints("r") == [f"{store.get_run_path('r')}/last.ckpt"]
    assert store.get_checkpoints("another") == []


def test_folders_are_copied(store: FilesystemStore, tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "x").write_text("x")
    store.copy(f"{folder}/", f"{store.prefix_path}/to/", recursive=True)
    assert store.read(f"{store.prefix_path}/to/x") == b"x"
    assert store.get_filesystem() is store.fs


def test_the_view_of_ranks_can_be_pickled(store: FilesystemStore, tmp_path: Path) -> None:
    assert store.fs is not None  # which is not to be pickled
    remote = pickle.loads(pickle.dumps(store.to_remote("r", 3)))
    assert remote.train_data_path == store.get_train_data_path(3)
    assert remote.val_data_path == store.get_val_data_path(3)
    assert remote.test_data_path == store.get_test_data_path(3)
    assert remote.saving_runs
    assert remote.checkpoint_path == f"{remote.run_path}/{remote.checkpoint_filename}"
    assert remote.logs_path == f"{remote.run_path}/{remote.logs_subdir}"
    assert remote.runs_path == store.get_runs_path()
    with remote.get_local_output_dir() as folder:
        Path(folder, "checkpoint").write_text("it")
        remote.sync(folder)
    assert remote.exists(remote.checkpoint_path)
    assert remote.read(remote.checkpoint_path) == b"it"


def test_options_for_fsspec_reach_it_and_ranks() -> None:
    store = FilesystemStore("memory://store", storage_options={"skip_instance_cache": True})
    assert store.to_remote("r").storage_options == {"skip_instance_cache": True}
    assert store.fs is not fsspec.filesystem("memory")


def test_parquet_data_are_recognised(store: FilesystemStore, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    from pyarrow import parquet

    assert not store.is_parquet_dataset(store.get_train_data_path())
    parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "one.parquet")
    store.put(str(tmp_path / "one.parquet"), f"{store.get_train_data_path()}/one.parquet")
    assert store.is_parquet_dataset(store.get_train_data_path())
    assert store.get_parquet_dataset(store.get_train_data_path()).to_table().num_rows == 2
    store.write_text(f"{store.get_val_data_path()}/text", "no Parquet")
    assert not store.is_parquet_dataset(store.get_val_data_path())


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hdfs://host:9000/a/b", ("hdfs://host:9000", "host", 9000, "/a/b", 16)),
        ("hdfs://name/a", ("hdfs://name", "name", None, "/a", 11)),
        ("hdfs:///a", ("hdfs://", None, None, "/a", 7)),
        ("/a", ("", None, None, "/a", 0)),
    ],
)
def test_urls_of_hdfs(url: str, parts: tuple[Any, ...]) -> None:
    found = HDFSStore.parse_url(url)
    assert tuple(found) == parts
    assert url[found.offset :] == found.path


@pytest.mark.parametrize(
    "url", ["", "a/b", "s3://a/b", "hdfs://host:9000", "hdfs://host:port/a", "file:///a"]
)
def test_what_is_no_path_of_hdfs(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no path on HDFS"):
        HDFSStore(url)


@pytest.mark.parametrize(
    ("given", "options", "full", "host", "port"),
    [
        ("hdfs://host:9000/a", {}, "hdfs://host:9000/a", "host", 9000),
        ("hdfs://name/a", {}, "hdfs://name/a", "name", 0),
        ("hdfs:///a", {}, "hdfs:///a", "default", 0),
        ("/a", {}, "hdfs:///a", "default", 0),
        ("/a", {"host": "host", "port": 1}, "hdfs://host:1/a", "host", 1),
        ("hdfs://host/a", {"host": "host", "port": 1, "user": "me"}, "hdfs://host:1/a", "host", 1),
    ],
)
def test_a_store_on_hdfs(given: str, options: dict[str, Any], full: str, host: str, port: int) -> None:
    store = HDFSStore(given, **options)
    assert store.prefix_path == full
    assert store.get_train_data_path(1) == f"{full}/intermediate_train_data.1"
    assert store.get_localized_path(store.get_train_data_path()) == "/a/intermediate_train_data"
    assert store.storage_options["host"] == host
    assert store.storage_options["port"] == port
    assert store.storage_options.get("user") == options.get("user")
    assert pickle.loads(pickle.dumps(store.to_remote("r"))).run_path == f"{full}/runs/r"


def test_hdfs_has_one_host_and_one_driver() -> None:
    with pytest.raises(InvalidArgumentError, match="the host is 'b', but hdfs://a/x names 'a'"):
        HDFSStore("hdfs://a/x", host="b")
    with pytest.raises(InvalidArgumentError, match="the only driver is 'libhdfs', not 'libhdfs3'"):
        HDFSStore("/a", driver="libhdfs3")


@pytest.mark.parametrize("moves", [0, 1])
def test_a_writer_that_is_killed_leaves_the_file_of_before_on_hdfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """On a folder in the place of HDFS, which renames onto nothing that is there."""
    store = HDFSStore(str(tmp_path))
    files = fsspec.filesystem("file", use_listings_cache=False, skip_instance_cache=True)
    monkeypatch.setattr(store, "_filesystem", files)
    path = f"{store.prefix_path}/b.txt"
    store.write_text(path, "first")
    done = 0

    def move(source: str, target: str) -> None:
        nonlocal done
        assert not Path(target).exists()
        if done == moves:
            raise KeyboardInterrupt
        done += 1
        os.rename(source, target)

    with monkeypatch.context() as killed:
        killed.setattr(files, "mv", move)
        with pytest.raises(KeyboardInterrupt):
            store.write_text(path, "second")
    assert store.exists(path)
    assert store.read(path) == b"first"
    store.write_text(path, "third")
    assert store.read(path) == b"third"
    assert [each.name for each in tmp_path.iterdir()] == ["b.txt"]
    store.remove(path)
    assert not store.exists(path)
    with pytest.raises(FileNotFoundError):
        store.read(path)


@pytest.mark.parametrize("given", ["/dbfs/x/y", "dbfs:/x/y", "file:/dbfs/x/y", "file:///dbfs/x/y"])
def test_a_store_on_dbfs(given: str) -> None:
    assert DBFSLocalStore.matches_dbfs(given)
    assert DBFSLocalStore.normalize_path(given) == "/dbfs/x/y"
    store = DBFSLocalStore(given)
    assert store.get_train_data_path() == "file:///dbfs/x/y/intermediate_train_data"
    assert store.get_localized_path(store.get_train_data_path()) == "/dbfs/x/y/intermediate_train_data"
    assert store.get_checkpoint_path("r") == "file:///dbfs/x/y/runs/r/checkpoint.tf"
    assert DBFSLocalStore(given, checkpoint_filename="model.keras").get_checkpoint_filename() == "model.keras"


@pytest.mark.parametrize("given", ["dbfs://x", "/dbfsx", "/x", "file:///x", "s3://dbfs/x"])
def test_what_is_not_on_dbfs(given: str) -> None:
    assert not DBFSLocalStore.matches_dbfs(given)
    with pytest.raises(InvalidArgumentError, match="is not on DBFS"):
        DBFSLocalStore(given)


def test_local_store_is_an_old_name(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="FilesystemStore"):
        assert LocalStore(str(tmp_path)).prefix_path == f"file://{tmp_path}"


def test_a_scheme_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match=r"nothing:// cannot be opened: .*fsspec knows: .*memory"):
        FilesystemStore("nothing://a").exists("nothing://a")
    with pytest.raises(InvalidArgumentError, match="path of a store is empty"):
        Store.create("")
