"""What the public modules say they offer is what they offer."""

import importlib
import inspect
import types

import pytest

PUBLIC_MODULES = [
    "horovod",
    "horovod.arrays",
    "horovod.arrays.mpi_ops",
    "horovod.arrays.functions",
    "horovod.arrays.compression",
    "horovod.torch",
    "horovod.torch.mpi_ops",
    "horovod.torch.functions",
    "horovod.torch.optimizer",
    "horovod.torch.compression",
    "horovod.torch.sync_batch_norm",
    "horovod.torch.elastic",
    "horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state",
    "horovod.common.basics",
    "horovod.common.elastic",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.data",
    "horovod.data.compute_service",
    "horovod.data.data_loader_base",
    "horovod.data.sharding",
    "horovod.tensorflow.data",
    "horovod.tensorflow.data.compute_service",
    "horovod.tensorflow.data.compute_worker",
    "horovod.tensorflow.data.sharding",
    "horovod.elastic.notification",
    "horovod.elastic.run",
    "horovod.elastic.sampler",
    "horovod.elastic.state",
    "horovod.runner",
    "horovod.runner.common.util.hosts",
    "horovod.runner.common.util.secret",
    "horovod.runner.common.util.timeout",
    "horovod.runner.elastic.worker",
    "horovod.runner.gloo_run",
    "horovod.runner.http.http_server",
    "horovod.errors",
    "horovod.observe",
]

# Interface of Horovod 0.28.1 that scripts rely on: everything `horovod.torch` exports.
TORCH_NAMES = [
    "elastic",
    "Compression",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "allreduce",
    "allreduce_async",
    "allreduce_",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_allreduce_",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "broadcast",
    "broadcast_async",
    "broadcast_",
    "broadcast_async_",
    "alltoall",
    "alltoall_async",
    "reduce",
    "reduce_async",
    "reduce_",
    "reduce_async_",
    "grouped_reduce",
    "grouped_reduce_async",
    "grouped_reduce_",
    "grouped_reduce_async_",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "barrier",
    "poll",
    "synchronize",
    "init",
    "shutdown",
    "is_initialized",
    "start_timeline",
    "stop_timeline",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "pin",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "HorovodInternalError",
    "DistributedOptimizer",
    "SyncBatchNorm",
]


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_names_exist_and_are_listed_once(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert [n for n in listed if not hasattr(module, n)] == []
    assert sorted(listed) == sorted(set(listed))


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_functions_and_classes_of_a_module_are_listed(name: str) -> None:
    module = importlib.import_module(name)
    own = [
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        and (inspect.isclass(value) or isinstance(value, types.FunctionType))
        and value.__module__ == name
    ]
    assert [attribute for attribute in own if attribute not in module.__all__] == []


def test_torch_offers_the_names_scripts_use_and_no_others() -> None:
    import horovod.torch as hvd

    assert [name for name in TORCH_NAMES if not hasattr(hvd, name)] == []
    assert set(vars(hvd)["__all__"]) == set(TORCH_NAMES)
    others = [
        name
        for name, value in vars(hvd).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name not in TORCH_NAMES
    ]
    assert others == ["annotations"]  # of __future__
