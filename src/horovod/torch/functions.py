"""Make all ranks start equal: parameters, optimizer state and Python objects."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from horovod.collectives import objects
from horovod.errors import InvalidArgumentError
from horovod.gradients.replicas import broadcasts
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import collectives
from horovod.torch.gradients import is_sparse_table, sparse_zero, zero_gradient
from horovod.torch.replicas import reference

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Sequence[torch.Tensor] | Sequence[tuple[str, torch.Tensor]], root_rank: int
) -> None:
    """Overwrite tensors with those of ``root_rank``, in place.

    Args:
        params: ``model.state_dict()``, or a list of tensors or of ``(name, tensor)``. The entries of a list
            without names must be in the same order on all ranks.
        root_rank: global rank of the sender.

    Raises:
        ValueError: another type of ``params``, in particular a generator; or a dtype that is not supported.
        HorovodInternalError: shapes or dtypes differ between ranks; a rank was lost.
    """
    entries: Iterable[tuple[str | None, Any]]
    if isinstance(params, Mapping):
        entries = sorted(params.items())
    elif isinstance(params, list):
        entries = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    else:
        raise InvalidArgumentError(
            f"invalid params of type: {type(params)}. Pass model.state_dict() or a list."
        )
    present = [(name, tensor) for name, tensor in entries if tensor is not None]
    _broadcast_tensors(present, root_rank)
    broadcasts.note((tensor.data_ptr(), reference(tensor)) for _, tensor in present)


def _broadcast_tensors(entries: list[tuple[str | None, torch.Tensor]], root_rank: int) -> None:
    """Broadcast all ``entries`` in place; everything is submitted before anything is waited for."""
    handles: list[int] = []
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    for entry in entries:
        _check_entry(*entry)
    for name, tensor in entries:
        buffer = tensor
        if not tensor.is_contiguous():
            # Ranks may keep the same weights in different orders (channels_last).
            buffer = collectives.frontend.contiguous_copy(tensor)
            copies.append((tensor, buffer))
        handles.append(collectives.broadcast(buffer, buffer, root_rank, name))
    collectives.synchronize_all(handles)
    with torch.no_grad():
        for tensor, buffer in copies:
            tensor.copy_(buffer)


def _check_entry(name: str | None, tensor: Any) -> None:
    """Refuse what cannot be overwritten.

    Raises:
        ValueError: no tensor, a sparse one, or one whose elements share memory.
    """
    if not isinstance(tensor, torch.Tensor):
        problem = f"is no tensor but a {type(tensor).__name__}. " + (
            "Write torch.from_numpy(array)"
            if hasattr(tensor, "__array__")
            else "Leave it out, and send it by broadcast_object"
        )
    elif tensor.layout != torch.strided:
        problem = f"has the layout {tensor.layout}. Leave it out, and send it by broadcast_object"
    elif any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        problem = "is expanded: its elements share memory. Make it contiguous by clone()"
    else:
        return
    raise InvalidArgumentError(
        f"The entry {name or '(without a name)'} of what is to be broadcast {problem}."
    )


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the ``obj`` of ``root_rank``: itself there, a fresh copy elsewhere. See
    ``horovod.collectives.objects``.

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return objects.broadcast_object(collectives, obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return every rank's ``obj`` in rank order.

    Raises:
        ValueError: ``init()`` has not been called.
    """
    return objects.allgather_object(collectives, obj, name)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Make options and state of ``optimizer`` those of ``root_rank``.

    Options and entries that are not tensors keep their Python type. Works on a wrapped optimizer and on a
    plain one; call it after ``broadcast_parameters``.

    What entries exist is decided by the root alone: a state that was loaded on the root only, or that lacks
    parameters that were never used, arrives as it is, and a root that has taken no step yet leaves all ranks
    without state, so that training begins as on a single process. Every parameter that requires gradients
    has a zero one afterwards, if it had none.

    Args:
        optimizer: wrapped by ``DistributedOptimizer`` or not; same structure of parameters on all ranks.
        root_rank: global rank of the sender.
        model: where to look for ``Embedding(sparse=True)``, whose zero gradients must be sparse for ``SGD``.

    Raises:
        ValueError: an ``LBFGS``, whose state cannot be broadcast, or no optimizer.
    """
    if not hasattr(optimizer, "param_groups"):
        raise InvalidArgumentError(
            f"broadcast_optimizer_state got a {type(optimizer).__name__}: it takes the optimizer. Write "
            "hvd.broadcast_optimizer_state(optimizer, root_rank=0)."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state")
    _allocate_gradients(optimizer, model)
    plan = broadcast_object(_describe_state(optimizer), root_rank, "optimizer_state")
    for group, options in zip(optimizer.param_groups, plan["options"], strict=True):
        group.update(options)
    optimizer.state.update(plan["rest"])

    entries: list[tuple[str | None, torch.Tensor]] = []
    counts: collections.Counter[str] = collections.Counter()
    for parameter, described in zip(_parameters(optimizer), plan["parameters"], strict=True):
        if described is None:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state[parameter]
        for key in [key for key in state if key not in described]:
            del state[key]
        for key, (is_tensor, value) in described.items():
            if not is_tensor:
                state[key] = value
                continue
            dtype, shape, on_host = value
            tensor = state.get(key)
            if not isinstance(tensor, torch.Tensor) or (tensor.dtype, tensor.shape, tensor.is_cpu) != (
                dtype,
                shape,
                on_host,
            ):
                # Counters are on the host, moments where the parameter is; each rank has a device of its own.
                place = torch.device("cpu") if on_host else parameter.device
                tensor = state[key] = torch.empty(shape, dtype=dtype, device=place)
            counts[key] += 1
            entries.append((f"{key}.{counts[key]}", tensor))
    _broadcast_tensors(entries, root_rank)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _describe_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything of the optimizer but the content of the state's tensors, to be pickled."""
    parameters = _parameters(optimizer)
    return {
        "options": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
        "parameters": [
            {
                key: (True, (value.dtype, tuple(value.shape), value.is_cpu))
                if isinstance(value, torch.Tensor) and value.layout == torch.strided
                else (False, value)
                for key, value in optimizer.state[parameter].items()
            }
            if parameter in optimizer.state
            else None
            for parameter in parameters
        ],
        # Entries that belong to no parameter.
        "rest": {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)},
    }


def _allocate_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Give a zero gradient to what can have one and has none; scripts count on that."""
    sparse: set[torch.Tensor] = set()
    if isinstance(optimizer, torch.optim.SGD) and model is not None:
        sparse = {module.weight for module in model.modules() if is_sparse_table(module)}
    for parameter in _parameters(optimizer):
        if parameter.requires_grad and parameter.grad is None:
            is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or parameter in sparse
            parameter.grad = sparse_zero(parameter, 1) if is_sparse else zero_gradient(parameter)
