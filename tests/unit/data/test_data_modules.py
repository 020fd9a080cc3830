"""Data modules and loaders: what ranks get in an epoch, on Parquet of several files and row groups."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("pyspark", reason="PySpark is not installed")

import horovod  # noqa: E402
from horovod.data.parquet import ParquetReader  # noqa: E402
from horovod.errors import DataStoreError, InvalidArgumentError  # noqa: E402
from horovod.spark.data_loaders import pytorch_data_loaders as loaders  # noqa: E402

WHOLE = os.environ.get("FARANDOLE_FULL_MATRIX") == "1"
BATCH = 4


def write(folder: Path, rows: int, group: int = 5, files: int = 3, **more: Any) -> str:
    """Rows 0, 1 ...: ``x`` is the number of the row, ``v`` three numbers from it on, ``w`` its weight."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        columns: dict[str, Any] = {
            "x": part,
            "v": pa.array([[row, row + 1, row + 2] for row in part], pa.list_(pa.float32())),
            "w": part / 2,
            **{name: make(part) for name, make in more.items()},
        }
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=group)
    return str(folder)


def module(name: str) -> Any:
    if name == "lightning":
        pytest.importorskip("lightning", reason="Lightning is not installed")
        from horovod.spark.lightning.datamodule import ParquetDataModule as Lightning

        return Lightning
    if name == "keras":
        from horovod.spark.keras.datamodule import ParquetDataModule as Keras

        return Keras
    from horovod.spark.torch.datamodule import ParquetDataModule as Torch

    return Torch


MODULES = ["torch", "keras", "lightning"]


def epochs_of(data: Any, count: int, steps: int, train: bool = True) -> list[list[dict[str, Any]]]:
    """The batches of some epochs, as the framework of the module takes them."""
    name = type(data).__module__.split(".")[2]
    if name == "lightning":
        loader = data.train_dataloader() if train else data.val_dataloader()
        assert len(loader) == steps
        return [list(loader) for _ in range(count)]
    batches = data.train_data() if train else data.val_data()
    if name == "torch":
        assert len(batches) == steps
        return [list(batches) for _ in range(count)]
    endless = iter(batches)  # as Keras does
    return [[next(endless) for _ in range(steps)] for _ in range(count)]


def column(batches: list[dict[str, Any]], name: str = "x") -> list[Any]:
    return [value for batch in batches for value in batch[name].tolist()]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_together_have_every_row_once_in_every_epoch(tmp_path: Path, name: str, ranks: int) -> None:
    path = write(tmp_path / "data", 48)
    steps = 48 // ranks // BATCH
    seen: list[list[int]] = [[], [], []]
    held_out: list[list[int]] = []
    for rank in range(ranks):
        with module(name)(
            path,
            path,
            train_batch_size=BATCH,
            val_batch_size=BATCH,
            cur_shard=rank,
            shard_count=ranks,
            steps_per_epoch_train=steps,
            steps_per_epoch_val=steps,
        ) as data:
            for epoch, batches in enumerate(epochs_of(data, 3, steps)):
                assert [len(batch["x"]) for batch in batches] == [BATCH] * steps
                for batch in batches:
                    rows = np.asarray(batch["x"])
                    np.testing.assert_array_equal(batch["v"], rows[:, None] + np.arange(3))
                    np.testing.assert_array_equal(batch["w"], rows / 2)
                seen[epoch] += column(batches)
            first, second = epochs_of(data, 2, steps, train=False)
            assert column(first) == column(second)
            held_out.append(column(first))
    assert [sorted(each) for each in seen] == [list(range(48))] * 3
    assert seen[0] != seen[1] != seen[2]
    assert [row for part in held_out for row in part] == list(range(48))


@pytest.mark.parametrize("name", MODULES)
def test_ranks_with_fewer_rows_take_as_many_steps_of_full_batches(tmp_path: Path, name: str) -> None:
    """50 rows in 10 row groups for 12 ranks: of two ranks one has no row group for itself."""
    path = write(tmp_path / "data", 50)
    for rank in range(12):
        with module(name)(
            path,
            None,
            has_val=False,
            train_batch_size=BATCH,
            cur_shard=rank,
            shard_count=12,
            steps_per_epoch_train=2,
        ) as data:
            assert [[len(batch["x"]) for batch in each] for each in epochs_of(data, 2, 2)] == [[4, 4]] * 2
            assert not data.val_data()


def test_the_order_follows_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 48)

    def order(**options: Any) -> list[Any]:
        options = {"train_batch_size": BATCH, "steps_per_epoch_train": 12, **options}
        with module("torch")(path, None, has_val=False, **options) as data:
            return [column(batches) for batches in epochs_of(data, 2, 12)]

    assert order(random_seed=3) == order(random_seed=3, reader_pool_type="dummy")
    assert order(random_seed=3) != order(random_seed=4)
    assert order(shuffle=False) == [list(range(48))] * 2
    assert order(random_seed=None) == order()
    cached = order(random_seed=3, inmemory_cache_all=True)
    assert cached[0] != cached[1]
    with pytest.raises(InvalidArgumentError, match=r"reader_pool_type must be 'thread'.* got 'fork'"):
        order(reader_pool_type="fork")


def test_tensors_lie_in_the_memory_that_arrow_decoded_to(tmp_path: Path) -> None:
    from horovod.data.parquet.columns import to_array
    from horovod.spark.data_loaders.pytorch_data_loaders import as_tensors

    table = pq.read_table(write(tmp_path / "data", 40, group=40, files=1))
    for name in ("x", "v", "w"):
        chunk = table[name].chunk(0)
        array = to_array(chunk)
        assert array.ctypes.data in [each.address for each in chunk.buffers() if each is not None]
        assert as_tensors({name: array})[name].data_ptr() == array.ctypes.data


def test_texts_are_no_tensors(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 8, text=lambda part: [str(row) for row in part])
    with (
        module("torch")(path, None, has_val=False, train_batch_size=2) as data,
        pytest.raises(
            InvalidArgumentError, match="Column 'text' has values of type object, of which PyTorch"
        ),
    ):
        list(data.train_data())
    with module("torch")(path, None, has_val=False, schema_fields=["w", "x"]) as data:
        (batch,) = data.train_data()
        assert list(batch) == ["w", "x"]


@pytest.mark.parametrize("name", MODULES)
def test_vectors_that_were_compressed_are_dense_again(tmp_path: Path, name: str) -> None:
    """Row n has n + 0.5 at place n % 6, and nothing where n % 3 is 0."""

    def few(part: NDArray[Any]) -> Any:
        return pa.array([[1, row % 6, row + 0.5] if row % 3 else [0, 0, 0] for row in part])

    path = write(tmp_path / "data", 24, s=few)
    metadata = {"s": {"intermediate_format": "custom_sparse_format", "shape": 6}}
    dense = np.zeros((24, 6))
    for row in range(24):
        dense[row, row % 6] = row + 0.5 if row % 3 else 0

    def summed(row: dict[str, Any]) -> dict[str, Any]:
        assert row["s"].shape == (6,)
        return {"x": row["x"], "s": row["s"] * 2}

    options = {"metadata": metadata, "train_batch_size": 6, "steps_per_epoch_train": 4}
    for factor, transform in ((1, None), (2, summed)):
        with module(name)(path, None, has_val=False, transform_fn=transform, **options) as data:
            (batches,) = epochs_of(data, 1, 4)
        for batch in batches:
            np.testing.assert_array_equal(batch["s"], factor * dense[np.asarray(batch["x"])])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda part: [None if row == 9 else 1.0 for row in part], "Column 'bad' has a null: row 1 of .*-1"),
        (
            lambda part: [[1.0] * (3 if row == 13 else 2) for row in part],
            "Column 'bad' has lists of 3 values where those before have 2: row 5 of .*part-1",
        ),
    ],
)
def test_data_that_does_not_fit_is_named_where_batches_are_used(
    tmp_path: Path, name: str, values: Any, message: str
) -> None:
    """Threads have read it, one of them perhaps ahead of a loader's own thread."""
    path = write(tmp_path / "data", 24, files=3, group=8, bad=values)
    more = {"train_async_data_loader_queue_size": 3} if name == "lightning" else {}
    with module(name)(
        path, None, has_val=False, shuffle=False, train_batch_size=4, steps_per_epoch_train=6, **more
    ) as data:
        batches = iter(data.train_dataloader() if name == "lightning" else data.train_data())
        assert column([next(batches) for _ in range(2)]) == list(range(8))
        with pytest.raises(InvalidArgumentError, match=message):
            next(batches)


def cut_off(file: str) -> None:
    os.truncate(file, 100)


def test_a_file_that_is_gone_or_cut_off_is_named(tmp_path: Path) -> None:
    spoilers: list[Callable[[str], None]] = [os.unlink, cut_off]
    for number, spoil in enumerate(spoilers):
        path = write(tmp_path / str(number), 24)
        with ParquetReader(path, batch_size=4, epochs=1, shuffle=False, workers=0) as reader:
            batches = iter(reader)
            next(batches)
            spoil(f"{path}/part-2.parquet")
            with pytest.raises(
                DataStoreError, match=r"Cannot read .*part-2\.parquet \(rows from 0 on\)"
            ) as caught:
                list(batches)
            assert caught.value.path.endswith("part-2.parquet")
        os.truncate(f"{path}/part-1.parquet", 100)
        with pytest.raises(
            DataStoreError, match=r"Cannot read .*part-1\.parquet \(its end\) on .*may have been"
        ):
            ParquetReader(path, batch_size=4)


def test_a_file_that_was_written_anew_with_fewer_rows_is_named(tmp_path: Path) -> None:
    """Equal values, so that the pages have as many bytes as before."""
    path = write(tmp_path / "data", 0, files=1)
    file = f"{path}/part-0.parquet"
    pq.write_table(pa.table({"x": [7] * 5}), file)
    with ParquetReader(path, batch_size=5, epochs=1, workers=0) as reader:
        pq.write_table(pa.table({"x": [7] * 3}), file)
        with pytest.raises(DataStoreError, match=r"Cannot read .*part-0\.parquet .*3 rows, not 5"):
            list(reader)


@pytest.mark.parametrize("name", MODULES)
def test_data_of_another_job_are_noticed(tmp_path: Path, name: str) -> None:
    """The steps were computed from other numbers of rows."""
    path = write(tmp_path / "data", 48)
    with module(name)(path, path, train_rows=48, val_rows=48) as data:
        assert len(epochs_of(data, 1, 1)) == len(epochs_of(data, 1, 1, train=False)) == 1
    with module(name)(path, path, train_rows=47, val_rows=49, cur_shard=1, shard_count=2) as data:
        for train, expected in ((True, 47), (False, 49)):
            with pytest.raises(DataStoreError, match=f"Rank 1 finds 48 rows at {path}.* from {expected}. An"):
                epochs_of(data, 1, 1, train=train)


def test_data_of_another_job_are_not_used_again(tmp_path: Path) -> None:
    """Data to validate on are compared, too."""
    from horovod.spark.common import preparation
    from horovod.spark.common.dataset import Claim
    from horovod.spark.common.store import FilesystemStore

    class Frame:
        """Stands for a DataFrame, which is only compared."""

    store, frame = FilesystemStore(str(tmp_path)), Frame()
    places = [
        Path(store.get_localized_path(get(0))) for get in (store.get_train_data_path, store.get_val_data_path)
    ]
    write(places[0], 20)
    write(places[1], 8)
    key = preparation._Key(("x",), 0.3, False, store.get_train_data_path(), store.get_val_data_path())
    claim = Claim(store, store.get_train_data_path(0))
    assert claim.take() is None
    entry = preparation._Entry(key, weakref.ref(frame), (20, 8, {}, 8.0), claim)
    preparation._entries[0] = entry
    entry.users = 1
    try:
        assert preparation._found(key, frame, store) == (0, entry)
        (places[1] / "part-0.parquet").unlink()
        entry.users = 0
        assert preparation._found(key, frame, store) == (0, None)
    finally:
        claim.release()
        preparation.clear_training_cache()


def test_a_loop_that_is_left_early_leaves_no_thread(tmp_path: Path) -> None:
    """Nobody closes these readers: readers of epochs, and those that rewind, have nothing to go on with."""
    path = write(tmp_path / "data", 48)
    for reader in (
        ParquetReader(path, batch_size=4, epochs=1),
        ParquetReader(path, batch_size=4, rewind=True, steps=3),
    ):
        for _ in reader:
            break
        assert not [each for each in threading.enumerate() if each.name.startswith("parquet")]
        assert len(list(reader)) == len(reader)


# -- the names of loaders that scripts know ------------------------------------------------------------------


def test_loaders_cut_and_mix_what_a_reader_has(tmp_path: Path) -> None:
    with ParquetReader(write(tmp_path / "data", 24), batch_size=24, epochs=1, shuffle=False) as reader:
        loader = loaders.PytorchDataLoader(reader, 10)
        assert len(loader) == 0
        assert [column([batch]) for batch in loader] == [[*range(10)], [*range(10, 20)], [*range(20, 24)]]
        assert isinstance(next(iter(loader))["v"], torch.Tensor)
        limited = loaders.PytorchDataLoader(reader, 10, limit_step_per_epoch=2)
        assert len(limited) == len(list(limited)) == 2
        mixed = column(list(loaders.PytorchDataLoader(reader, 10, shuffling_queue_capacity=12)))
        assert mixed != sorted(mixed)
        assert [sorted(mixed[:12]), sorted(mixed[12:])] == [[*range(12)], [*range(12, 24)]]


def test_an_endless_loader_goes_on_and_fails_again_after_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 24, bad=lambda part: [None if row == 23 else 1.0 for row in part])
    options: dict[str, Any] = {"batch_size": 6, "shuffle": False, "columns": ["x"]}
    for steps in (None, 1):  # the reader's own end of a loop is none of the loader's
        with ParquetReader(path, **options, steps=steps) as reader:
            loader = loaders.PytorchInfiniteDataLoader(reader, 4, limit_step_per_epoch=4)
            assert [column(list(loader)) for _ in range(3)] == [
                [*range(16)],
                [*range(16, 24), *range(8)],
                [*range(8, 24)],
            ]
    with ParquetReader(path, batch_size=6, shuffle=False) as reader:
        loader = loaders.PytorchInfiniteDataLoader(reader, 4, limit_step_per_epoch=6)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="Column 'bad' has a null"):
                list(loader)
    with ParquetReader(path, batch_size=6, epochs=1) as reader, pytest.raises(InvalidArgumentError):
        loaders.PytorchInfiniteDataLoader(reader, 4)


def test_a_loader_in_memory_reads_once(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 24)
    with ParquetReader(path, batch_size=24, epochs=1, shuffle=False) as reader:
        loader = loaders.PytorchInmemDataLoader(reader, 4, None, shuffle=True, limit_step_per_epoch=6)
        first, second = (column(list(loader)) for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(24))
        assert first != second
        twice = loaders.PytorchInmemDataLoader(reader, 6, 2, limit_step_per_epoch=8)
        assert [column(list(twice)), list(twice)] == [[*range(24), *range(24)], []]
        with pytest.raises(InvalidArgumentError, match="needs limit_step_per_epoch"):
            loaders.PytorchInmemDataLoader(reader, 4, 1)
    with ParquetReader(path, batch_size=4) as endless, pytest.raises(InvalidArgumentError, match="epochs=1"):
        loaders.PytorchInmemDataLoader(endless, 4, 1, limit_step_per_epoch=2)


@pytest.mark.parametrize(
    "kind",
    [
        loaders.PytorchAsyncDataLoader,
        loaders.PytorchInfiniteAsyncDataLoader,
        loaders.PytorchInmemAsyncDataLoader,
    ],
)
def test_loaders_in_a_thread_have_the_same_batches(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "data", 24)
    epochs = None if kind is loaders.PytorchInfiniteAsyncDataLoader else 1
    more = {"num_epochs": 5} if kind is loaders.PytorchInmemAsyncDataLoader else {}
    with ParquetReader(path, batch_size=24, epochs=epochs, shuffle=False) as reader:
        loader = kind(2, False, reader, batch_size=4, limit_step_per_epoch=6, **more)
        assert [column(list(loader)) for _ in range(2)] == [[*range(24)]] * 2
        for _ in loader:
            break  # and its thread ends all the same
        loader.close_async_loader()


# -- with the frameworks -------------------------------------------------------------------------------------


def learn_on_rank(path: str, steps: int) -> list[Any]:
    """Train in two epochs; returns the rows of all ranks in each, the weights, and the loss of validation."""
    import torch

    import horovod.torch as hvd
    from horovod.spark.torch.datamodule import ParquetDataModule

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1).double()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6), named_parameters=model.named_parameters()
    )
    rows, losses = [], []
    with ParquetDataModule(
        path,
        path,
        train_batch_size=4,
        val_batch_size=4,
        cur_shard=hvd.rank(),
        shard_count=hvd.size(),
        steps_per_epoch_train=steps,
        steps_per_epoch_val=steps,
    ) as data:
        train, held_out = data.train_data(), data.val_data()
        for _ in range(2):
            mine = []
            for batch in train:
                optimizer.zero_grad()
                error = (model(batch["v"].double())[:, 0] - batch["x"]) ** 2
                (error * batch["w"]).mean().backward()
                optimizer.step()
                mine.append(batch["x"])
            rows.append(sorted(hvd.allgather(torch.cat(mine)).tolist()))
            with torch.no_grad():
                sums = [((model(each["v"].double())[:, 0] - each["x"]) ** 2).sum() for each in held_out or ()]
            losses.append(float(hvd.allreduce(torch.stack(sums).sum(), op=hvd.Sum)))
    return [rows, model.weight.tolist(), losses]


@pytest.mark.timeout(240)  # importing PyTorch and PySpark in each rank, where others compute, too
@pytest.mark.parametrize("ranks", [1, 2, 3] if WHOLE else [2])
def test_real_ranks_train_on_their_shares(tmp_path: Path, ranks: int) -> None:
    path = write(tmp_path / "data", 48)
    results = horovod.run(learn_on_rank, (path, 48 // ranks // 4), num_proc=ranks, start_timeout=120)
    rows, _, losses = results[0]
    assert all(each == results[0] for each in results)
    assert rows == [list(range(48))] * 2
    assert losses[1] < losses[0]


@pytest.mark.filterwarnings("ignore")  # Lightning has advice on each Trainer
def test_a_trainer_of_lightning_takes_the_module(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    from lightning import pytorch as pl

    class Line(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 1)
            self.rows: list[int] = []
            self.held_out: list[int] = []

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            self.rows += batch["x"].tolist()
            return ((self.line(batch["v"])[:, 0] - batch["x"].float()) ** 2).mean()

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            self.held_out += batch["x"].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-5)

    path = write(tmp_path / "data", 24)
    data = module("lightning")(
        path,
        path,
        train_batch_size=4,
        val_batch_size=8,
        steps_per_epoch_train=6,
        steps_per_epoch_val=3,
        train_async_data_loader_queue_size=0.5,
        val_async_data_loader_queue_size=2,
    )
    model = Line()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 12
    assert [sorted(model.rows[:24]), sorted(model.rows[24:])] == [list(range(24))] * 2
    assert model.held_out == [*range(24), *range(24)]


def test_a_transformation_of_lightning_says_what_it_makes(tmp_path: Path) -> None:
    path = write(tmp_path / "data", 8)
    options = {"train_batch_size": 8, "has_val": False, "shuffle": False}
    with module("lightning")(
        path,
        None,
        transformation=lambda row: {**row, "double": row["x"] * 2},
        transformation_edit_fields=[("double", np.float32, (1,), False)],
        transformation_removed_fields=["w"],
        seed=3,
        **options,
    ) as data:
        (batch,) = data.train_dataloader()
    assert sorted(batch) == ["double", "v", "x"]
    assert batch["double"].dtype == torch.float32
    assert batch["double"].tolist() == [[2.0 * row] for row in range(8)]
    with (
        module("lightning")(
            path, None, transformation_edit_fields=[("no", "f4", (), False)], **options
        ) as data,
        pytest.raises(InvalidArgumentError, match="names 'no', which the transformation does not return"),
    ):
        list(data.train_dataloader())
    with pytest.raises(InvalidArgumentError, match=r"queue size .* got -1"):
        module("lightning")(path, None, train_async_data_loader_queue_size=-1)


# Losses say which batches the model was given, which a count of what was read does not: x is learned from
# nothing, with a learning rate of 0, so each row has the loss x * x.
KERAS = """
import sys
import keras
from horovod.spark.keras.datamodule import ParquetDataModule
from horovod.spark.keras.training import validation_set

def pairs(batches):
    for batch in batches:
        yield batch["v"], batch["x"].astype("float32")

path, expected = sys.argv[1], sum(row * row for row in range(24)) / 24
with ParquetDataModule(path, path, train_batch_size=4, val_batch_size=8, steps_per_epoch_train=6,
                       steps_per_epoch_val=3, schema_fields=["v", "x"]) as data:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    held_out = data.val_data()
    held_out_set = validation_set(keras.utils.PyDataset, lambda: pairs(held_out), 3)
    found = model.fit(pairs(data.train_data()), validation_data=held_out_set,
                      steps_per_epoch=6, epochs=3, shuffle=False, verbose=0)
for name in ("loss", "val_loss"):
    assert [round(each, 2) for each in found.history[name]] == [round(expected, 2)] * 3, found.history
"""


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"] if WHOLE else ["jax"])
def test_keras_fits_on_the_batches(tmp_path: Path, backend: str) -> None:
    if not all(map(find_spec, ("keras", backend))):
        pytest.skip(f"Keras or {backend} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", KERAS, write(tmp_path / "data", 24)],
        env={**os.environ, "KERAS_BACKEND": backend},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
