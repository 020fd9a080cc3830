"""``SyncBatchNorm``: batch normalisation over the batches of all ranks together."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.collectives.ops import Sum
from horovod.errors import InvalidArgumentError
from horovod.runtime.process_set import ProcessSet, global_process_set, member_count
from horovod.torch.autograd import apply, collectives
from horovod.torch.collectives.allreduce import allreduce
from horovod.torch.wrapped_optimizer import SetReference

__all__ = ["SyncBatchNorm"]

# One exchange in each direction. The names are fixed: all ranks run their layers in the same order.
_FORWARD = "sync_batch_norm.statistics"
_BACKWARD = "sync_batch_norm.gradients"

M = TypeVar("M", bound=torch.nn.Module)


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose mean and variance are those of the batches of all ranks, in training.

    Parameters, buffers and ``state_dict`` are those of ``torch.nn.BatchNorm1d`` and its relatives. The number
    of samples may differ between ranks, also be 0. All ranks must run the same layers in the same order,
    forward and backward. In evaluation with running statistics, or alone in the world, nothing is exchanged.

    The gradient of the input is that of the whole batch; those of ``weight`` and ``bias`` are the sums over
    this rank's part, for ``DistributedOptimizer`` to average. Second derivatives work, if all ranks ask.

    Args:
        num_features: ``C`` of inputs of shape ``(N, C, ...)``.
        eps: added to the variance.
        momentum: share of the newest batch in the running statistics; ``None`` = average of all batches.
        affine: have ``weight`` and ``bias``.
        track_running_stats: keep running statistics; without them each batch counts, also in evaluation.
        process_set: ranks whose batches count together; on others it is the plain layer.
    """

    _set: SetReference | None = None  # of the ranks, if not all

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._choose(process_set)

    def _choose(self, process_set: ProcessSet) -> None:
        if process_set is not global_process_set:
            self._set = SetReference(process_set)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``input`` of shape ``(N, num_features, ...)``, any floating dtype; same shape and dtype.

        Raises:
            ValueError: another shape or dtype; or, on every rank, a single value per channel in all batches.
            NotInitializedError: in training, before ``init()``.
            TypeError: the process set is not registered.
            HorovodInternalError: ranks disagree on ``num_features``; a rank was lost.
        """
        self._check_input_dim(input)
        has_running = self.running_mean is not None and self.running_var is not None
        process_set = global_process_set if self._set is None else self._set.process_set
        if not (self.training or not has_running) or _stays_local(process_set):
            return super().forward(input)
        if not input.is_floating_point() or input.size(1) != self.num_features:
            raise InvalidArgumentError(
                f"SyncBatchNorm with {self.num_features} features got an input of {input.dtype} and shape "
                f"{list(input.shape)}."
            )
        out, mean, var, count = apply(_Normalise, input, self.weight, self.bias, self.eps, process_set)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), var.detach(), int(count))
        result: torch.Tensor = out
        return result

    @classmethod
    def convert_sync_batchnorm(
        cls, module: M, process_set: ProcessSet = global_process_set
    ) -> M | SyncBatchNorm:
        """Replace every batch normalisation in ``module`` by one of this class, and return ``module`` (or
        what it was replaced by). Parameters and buffers stay the same objects, so an optimizer goes on
        working; hooks and other attributes move along, and a layer that is used in several places stays one.
        The batches of the ranks of ``process_set`` count together.

        Raises:
            ValueError: a lazy layer, whose number of features is not known yet; or one whose class computes
                something of its own, such as an activation, which would be lost. Nothing is replaced then.
        """
        layers = dict.fromkeys(each for each in module.modules() if isinstance(each, _BatchNorm))
        for layer in layers:
            _check_convertible(layer)
        converted = {layer: cls._like(layer) for layer in layers if not isinstance(layer, cls)}
        for layer in converted.values():
            layer._choose(process_set)
        for parent in list(module.modules()):
            for name, child in list(parent._modules.items()):
                if isinstance(child, _BatchNorm) and child in converted:
                    setattr(parent, name, converted[child])
        return converted.get(module, module) if isinstance(module, _BatchNorm) else module

    @classmethod
    def _like(cls, module: _BatchNorm) -> SyncBatchNorm:
        converted = cls.__new__(cls)
        # Containers (of parameters, buffers, hooks) of its own, with the same content.
        converted.__dict__ = {
            name: copy.copy(value) if isinstance(value, dict | set) else value
            for name, value in module.__dict__.items()
            if name != "_compiled_call_impl"  # would go on calling ``module``
        }
        return converted

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgumentError(f"expected at least 2D input (got {input.dim()}D input)")

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        """Update the running statistics as ``torch.nn.BatchNorm1d`` would on the whole batch."""
        if self.running_mean is None or self.running_var is None or count == 0:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if share is None:
                share = 1.0 / float(self.num_batches_tracked)
        if share is None:
            return
        for running, new in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
            running.mul_(1.0 - share).add_(new.to(running.dtype), alpha=share)


def _stays_local(process_set: ProcessSet) -> bool:
    return member_count(process_set) == 1 or not process_set.included()


def _check_convertible(layer: _BatchNorm) -> None:
    kind = type(layer)
    if isinstance(layer, torch.nn.modules.batchnorm._LazyNormBase):
        raise InvalidArgumentError(
            f"{kind.__name__} does not know its number of features yet: run a forward pass first."
        )
    if isinstance(layer, SyncBatchNorm):
        return
    if "forward" in vars(layer) or not kind.forward.__module__.startswith("torch.nn."):
        raise InvalidArgumentError(
            f"{kind.__module__}.{kind.__name__} has a forward() of its own, which SyncBatchNorm would leave "
            "out. Replace its layers yourself, for example by hvd.SyncBatchNorm and what else it computes."
        )


class _Normalise(torch.autograd.Function):
    """Normalise by the statistics of all ranks.

    Outputs, besides the result: mean and biased variance (float64, shape ``(C,)``) and number of values per
    channel (float64 scalar) of the whole batch. The backward pass uses the first two as saved outputs, so it
    is differentiable itself: what depends on the input through them comes back as their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, ...]:
        mean, var, count = _global_statistics(x, process_set)
        if float(count) == 1:
            raise InvalidArgumentError(
                "Expected more than 1 value per channel when training, got one on all ranks together."
            )
        wide = _arithmetic(x.dtype)
        if x.numel() == 0:
            out = torch.empty_like(x)
        else:
            # The kernel that a single process would use: it treats means that are large against the
            # variance the same way.
            out = functional.batch_norm(
                x,
                mean.to(wide),
                var.to(wide),
                None if weight is None else weight.to(wide),
                None if bias is None else bias.to(wide),
                training=False,
                eps=eps,
            )
        ctx.save_for_backward(x, weight, bias, mean, var)
        ctx.count, ctx.eps, ctx.process_set = float(count), eps, process_set
        ctx.mark_non_differentiable(count)
        ctx.set_materialize_grads(False)
        return out, mean, var, count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mean, var = ctx.saved_tensors
        dy, dmean, dvar, _ = grads
        dims, wide = _other_dims(x), _arithmetic(x.dtype)

        def spread(value: torch.Tensor) -> torch.Tensor:
            return value.to(wide).view(1, -1, *[1] * (x.dim() - 2))

        dy = torch.zeros_like(x, dtype=wide) if dy is None else dy.to(wide)
        xmu = x.to(wide) - spread(mean)
        invstd = torch.rsqrt(var + ctx.eps)
        scale = invstd if weight is None else invstd * weight
        sum_dy = dy.sum(dims, dtype=torch.float64)
        sum_dy_xmu = (dy * xmu).sum(dims, dtype=torch.float64)

        dx = dweight = dbias = None
        if not ctx.count:  # no rank has a value; every rank knows that
            dx = torch.zeros_like(x)
        elif ctx.needs_input_grad[0]:
            # Upstream gradients of the statistics exist only in second derivatives. Then every rank has them.
            own = [sum_dy, sum_dy_xmu, *([] if dmean is None else [dmean]), *([] if dvar is None else [dvar])]
            total = list(_sum_over_ranks(torch.cat(own), ctx.process_set).chunk(len(own)))
            mean_dy, mean_dy_xmu = total.pop(0) / ctx.count, total.pop(0) / ctx.count
            dx = spread(scale) * (dy - spread(mean_dy) - xmu * spread(invstd.square() * mean_dy_xmu))
            if dmean is not None:
                dx = dx + spread(total.pop(0) / ctx.count)
            if dvar is not None:
                dx = dx + xmu * spread(2.0 * total.pop(0) / ctx.count)
            dx = dx.to(x.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            dweight = (sum_dy_xmu * invstd).to(weight.dtype)
        if bias is not None and ctx.needs_input_grad[2]:
            dbias = sum_dy.to(bias.dtype)
        return dx, dweight, dbias, None, None


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    """In which type values of ``dtype`` are normalised."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def _other_dims(x: torch.Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _global_statistics(
    x: torch.Tensor, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and biased variance per channel of all members' ``x``, and the number of values; float64, the same
    bits on all ranks.

    Every rank sends count, mean and sum of squared deviations, packed: one exchange. These are combined as
    parts of one sample, without sums of squares that would cancel.

    Source: Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
    Stanford STAN-CS-79-773 (1979), equation 2.1, here for any number of parts at once.
    """
    features = x.size(1)
    own = torch.zeros(1, 1 + 2 * features, dtype=torch.float64, device=x.device)
    if x.numel():
        count = x.numel() // features
        var, mean = torch.var_mean(x.double(), _other_dims(x), correction=0)
        own[0, 0] = count
        own[0, 1 : 1 + features] = mean
        own[0, 1 + features :] = var * count
    gathered = collectives.run_allgather(own, _FORWARD, process_set)
    counts, means, squares = gathered.split([1, features, features], dim=1)
    total = counts.sum()
    weights = counts / total.clamp(min=1.0)
    mean = (weights * means).sum(0)
    var = squares.sum(0) / total.clamp(min=1.0) + (weights * (means - mean).square()).sum(0)
    return mean, var, total


def _sum_over_ranks(values: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    return allreduce(values, name=_BACKWARD, op=Sum, process_set=process_set)
