"""Weights of PyTorch for the comparison of replicas: what stands in the parameter groups of an optimizer."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from horovod.gradients.fingerprints import BLOCK, combined, fingerprint, place_factors
from horovod.gradients.replicas import Replicas, Weights, broadcasts
from horovod.runtime.process_set import ProcessSet

__all__ = ["fingerprints", "reference", "replicas_of", "watch_original"]

_REMEDY: Final = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"

_BYPASSED: Final = (
    " Or call step() of what hvd.DistributedOptimizer() has returned: step() was called on the optimizer "
    "that it was given."
)

_NUMBER: Final = re.compile(r"([0-9]+)")

_NOT_WRAPPED: Final = (
    "the optimizer that stepped is not the wrapped one. Write optimizer = "
    "hvd.DistributedOptimizer(optimizer, ...), and call step() of what it returns."
)

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_AT_ONCE: Final = 1 << 22
"""Integers on a device whose products are in memory at the same time: 32 MiB."""


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int]:
    """See ``horovod.gradients.fingerprints``. What is on a device is summed there; all of them are waited for
    together."""
    results = [0] * len(tensors)
    on_device: list[tuple[int, torch.Tensor]] = []
    for place, tensor in enumerate(tensors):
        bits = _bits(tensor)
        if bits.is_cpu:
            results[place] = fingerprint(bits.numpy())
        else:
            on_device.append((place, _sums(bits)))
    for place, sums in on_device:
        results[place] = combined(sums.cpu().numpy())
    return results


def reference(tensor: torch.Tensor) -> StorageWeakRef:
    """To the memory of ``tensor``: equal for all tensors that share it, and different for those that get its
    address later."""
    return StorageWeakRef(tensor.untyped_storage())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The values in row-major order, as integers."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(_INTEGERS.get(flat.element_size(), torch.int32))


def _sums(bits: torch.Tensor) -> torch.Tensor:
    """The sums of the blocks, on the device of ``bits``."""
    factors = torch.from_numpy(place_factors()).to(bits.device, non_blocking=True)
    whole = bits.numel() // BLOCK
    blocks = bits[: whole * BLOCK].view(whole, BLOCK)
    rows = _AT_ONCE // BLOCK
    sums = [(blocks[at : at + rows] * factors).sum(dim=1) for at in range(0, whole, rows)]
    rest = bits[whole * BLOCK :]
    return torch.cat([*sums, (rest * factors[: rest.numel()]).sum().reshape(1)])


def replicas_of(optimizer: Any, name: str, process_set: ProcessSet, *, bypassed: str = "") -> Replicas:
    """The comparison of what ``optimizer`` has in its parameter groups; does not keep it alive."""
    ref = weakref.ref(optimizer)

    def weigh() -> Weights:
        return _weights(ref())

    return Replicas(name, process_set, weigh, _REMEDY, bypassed=bypassed)


def _weights(optimizer: Any) -> Weights:
    names = getattr(optimizer, "_parameter_names", {})
    # Ranks may hold their parameters in different orders.
    entries = sorted(_entries(optimizer, names), key=_in_order)
    tensors = [tensor for _, tensor in entries]
    reached = [broadcasts.reached(tensor.data_ptr(), reference(tensor)) for tensor in tensors]
    # Frozen weights may follow the data of each rank, as the code book of a quantiser does. They differ by
    # mistake if nobody has made them equal. After a move to another device nobody knows.
    unreached = not broadcasts.happened or any(reached)
    return Weights(
        names=[name for name, _ in entries],
        # With the names: optimizers of equal shapes may step in another order on each rank.
        layout=repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in entries]),
        fingerprints=fingerprints(tensors),
        telling=[
            tensor.requires_grad or (unreached and not known)
            for tensor, known in zip(tensors, reached, strict=True)
        ],
        covered=reached,
    )


def _in_order(entry: tuple[str, torch.Tensor]) -> list[tuple[int, str]]:
    """Sorts by name, with ``layer.2`` before ``layer.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(entry[0])]


def _entries(optimizer: Any, names: dict[torch.Tensor, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors with their names: no sparse ones, and none of a class that decides what its values
    are, as those do that are spread over ranks."""
    for number, group in enumerate(optimizer.param_groups):
        for position, tensor in enumerate(group["params"]):
            if _is_plain(tensor):
                yield names.get(tensor, f"parameter {position} of group {number}"), tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    own = type(tensor).__torch_dispatch__
    return own is torch.Tensor.__torch_dispatch__ and tensor.layout == torch.strided and not tensor.is_meta


def watch_original(original: Any, wrapper: Any, replicas: Replicas) -> None:
    """Compare the weights of ``original`` in its own steps, until ``wrapper``, whose weights ``replicas``
    compares, has made one: whoever wraps an optimizer and steps with the original exchanges nothing."""
    if not hasattr(original, "_optimizer_step_pre_hooks"):
        return  # it only looks like an optimizer of PyTorch
    mine, wrapped = weakref.ref(original), weakref.ref(wrapper)
    own = replicas_of(original, "Optimizer", replicas.process_set, bypassed=_NOT_WRAPPED)

    def before_step(optimizer: Any, *_: Any) -> None:
        if optimizer is mine() and not replicas.used:  # the wrapper has the same hooks
            exchange = getattr(wrapped(), "_exchange", None)
            if exchange is None:  # nobody has kept it
                own.visit()
            elif exchange.in_flight:
                exchange.advice = _BYPASSED

    original.register_step_pre_hook(before_step)
