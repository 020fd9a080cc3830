"""Exchange of gradients while the backward pass still computes: the same for every framework.

A framework calls :meth:`GradientExchange.ready` when a parameter's gradient has been accumulated, and
:meth:`GradientExchange.finish` before the optimizer uses the gradients. In between, the gradients of a group
are submitted when its last one is ready; nothing waits. The common case (one dense gradient, no compression,
a group of one) ends in one native call and allocates nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Generic

from horovod import _core
from horovod.collectives.base import ASYNCHRONOUS, current_engine
from horovod.collectives.forms import Collectives
from horovod.collectives.frontend import T
from horovod.collectives.ops import Average, Sum, name_of_op
from horovod.errors import DuplicateNameError, GradientChangedError, InvalidArgumentError
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.replicas import Replicas
from horovod.gradients.settings import GradientSettings
from horovod.runtime import lifecycle
from horovod.runtime.process_set import global_process_set, process_set_id

__all__ = ["GradientExchange", "GradientStore"]

_ALLREDUCE: Final[int] = _core.ALLREDUCE
# States of a parameter between two `finish` that are not a handle number (those start at 1).
_IDLE: Final = 0
_SUBMITTED_ELSEWHERE: Final = -1


class GradientStore(ABC, Generic[T]):
    """Store of the gradients, with the operations on them that differ between frameworks."""

    remedy: str
    """Sentences for scripts that change gradients while these are exchanged: what to write instead."""

    @abstractmethod
    def get(self, index: int) -> T | None:
        """The gradient of parameter ``index``; ``None``: it has none."""

    @abstractmethod
    def zero(self, index: int) -> T:
        """A gradient of parameter ``index`` without effect, which the parameter does not get."""

    @abstractmethod
    def put(self, index: int, gradient: T) -> None:
        """Make ``gradient`` the gradient of parameter ``index``."""

    @abstractmethod
    def version(self, gradient: T) -> int:
        """A number that is another one after each change of ``gradient`` in place."""

    @abstractmethod
    def changed(self, handed: Sequence[T | None], versions: Sequence[int]) -> Sequence[int]:
        """Numbers of the parameters whose gradients are not what they were when they were handed over.

        Args:
            handed: by parameter, the gradient that was handed over; ``None``: none was.
            versions: by parameter, the version that it had then.
        """

    # What has a body here suits a store without sparse and complex gradients.

    def is_sparse(self, index: int, gradient: T) -> bool:
        """Return whether the gradient of parameter ``index`` holds rows with their indices instead of a dense
        tensor. The store remembers a yes: from then on :meth:`zero` gives a sparse zero.
        """
        return False

    def renew(self, index: int) -> None:
        """Another parameter has this number from now on: forget what is remembered of the old one."""
        return

    def is_complex(self, index: int) -> bool:
        """Return whether the gradient of parameter ``index`` holds complex numbers."""
        return False

    def as_real(self, dense: T) -> T:
        """Real and imaginary parts of a complex gradient: a view of its memory if there is one."""
        raise NotImplementedError

    def as_complex(self, parts: T) -> T:
        """Undo :meth:`as_real`."""
        raise NotImplementedError

    def share_memory(self, one: T, other: T) -> bool:
        """Return whether both begin at the same address."""
        return one is other

    def to_dense(self, gradient: T) -> T:
        """A dense gradient with the values of a sparse one."""
        raise NotImplementedError

    def to_sparse(self, dense: T, like: T) -> T:
        """Undo :meth:`to_dense`; ``like`` is the gradient it was given."""
        raise NotImplementedError

    def sparse_allreduce(self, gradient: T, name: str, op: int) -> Callable[[], T]:
        """Start the reduction of a sparse gradient; calling the result waits for it."""
        raise NotImplementedError

    @abstractmethod
    def settle(self, exchanged: Sequence[T | None]) -> None:
        """All gradients have been exchanged: make sure that the optimizer sees them.

        Args:
            exchanged: by parameter, the gradient that was reduced in its own memory; ``None`` where the
                result came through :meth:`put`, and where there is none.
        """


class GradientExchange(Generic[T]):
    """The gradients of one optimizer, between ``backward`` and ``step``.

    Parameters are numbered 0 … n-1; ``names`` are their identity across ranks.

    Args:
        collectives: of the framework.
        store: see :class:`GradientStore`.
        names: unique, equal on all ranks.
        settings: how gradients are reduced.
        groups: those of the settings, as disjoint lists of parameters that travel as one operation; the
            others travel alone.
    """

    def __init__(
        self,
        collectives: Collectives[T],
        store: GradientStore[T],
        names: Sequence[str],
        settings: GradientSettings,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        self._collectives = collectives
        self._store = store
        self._names: list[str] = []
        self._op = settings.op
        self._passes = settings.backward_passes_per_step
        self._prescale, self._postscale = settings.scales
        self._compression = settings.compression
        self._compressors: list[Any] = []
        self._sparse_as_dense = settings.sparse_as_dense
        self._process_set = settings.process_set
        process_set_id(settings.process_set)  # refuses what is no registered set

        self._group_of: dict[int, Sequence[int]] = {}
        for group in groups:
            if len(group) > 1:
                self._group_of.update(dict.fromkeys(group, group))
        # Whether a gradient may take the short way: alone, as it is, at once.
        self._plain: list[bool] = []
        self._peek = collectives.frontend.peek
        self._pending = collectives.table.pending
        self._handles: list[int] = []
        self._left: list[int] = []
        # What was handed over, and in which version.
        self._handed: list[T | None] = []
        self._versions: list[int] = []
        self._version = store.version
        # What `settle` gets.
        self._given: list[T | None] = []
        self._collect: list[tuple[int, Callable[[], None]]] = []
        # Parameters without a gradient on this rank, by the handle and the place in its group.
        self._lacking: dict[tuple[int, int], int] = {}
        self._removed: set[int] = set()
        self._prepare_local: Callable[[int, T], T | None] | None = None
        # Gradients wait for `finish` if somebody must see all of them before the exchange (`hold`) ...
        self._deferred = False
        # ... or if an exchange during backward would take cores from the ranks that compute.
        self._late = self._exchanges_late()
        self.in_flight = False
        """True if gradients have been handed over since the last :meth:`finish`."""
        self.advice = ""
        """Further advice for gradients that come too often."""
        self.replicas: Replicas | None = None
        """Comparison of the weights, made in some of the exchanges."""
        for name in names:
            self.add(name)

    # -- life cycle -----------------------------------------------------------------------------------------

    def add(self, name: str) -> int:
        """One more parameter, which the store knows already; returns its number. All ranks add it between the
        same two exchanges.

        Raises:
            ValueError: it is complex, and the reduction is not one of real and imaginary parts.
        """
        index = len(self._names)
        if self._store.is_complex(index) and self._op not in (Average, Sum):
            raise InvalidArgumentError(
                f"op={name_of_op(self._op)} cannot reduce the gradient of {name}, which is complex: only "
                "Average and Sum do the same to complex numbers as to their real and imaginary parts. Use "
                "op=hvd.Average or op=hvd.Sum."
            )
        self._names.append(name)
        for_tensor = getattr(self._compression, "for_tensor", None)
        self._compressors.append(self._compression if for_tensor is None else for_tensor(name))
        self._handles.append(_IDLE)
        self._left.append(self._passes)
        self._handed.append(None)
        self._versions.append(0)
        self._given.append(None)
        self._plain.append(self._may_be_plain(index))
        return index

    def remove(self, index: int) -> None:
        """Exchange this parameter no more. All ranks remove it between the same two exchanges."""
        self._removed.add(index)
        self._arm()

    def renew(self, index: int) -> None:
        """The store has another parameter under this number now."""
        self._store.renew(index)
        self._plain[index] = self._may_be_plain(index)

    def _may_be_plain(self, index: int) -> bool:
        return (
            self._compressors[index] is NoneCompressor
            and index not in self._group_of
            and not self._store.is_complex(index)
            and self._prepare_local is None
            and not self._deferred
        )

    def hold(self, prepare_local: Callable[[int, T], T | None] | None, *, deferred: bool = False) -> None:
        """Say what happens to gradients that are complete, but still local.

        Args:
            prepare_local: called with the number of a parameter and its gradient right before that is
                exchanged; what it returns is exchanged instead. It may change the gradient.
            deferred: they stay local until :meth:`finish`, so that all of them can be seen together.
        """
        self._prepare_local = prepare_local
        self._deferred = deferred
        self._plain = [self._may_be_plain(index) for index in range(len(self._names))]

    def expect(self, passes: int) -> None:
        """Sum so many passes from now on."""
        self._passes = passes
        self.reset()

    def reset(self) -> None:
        """Forget what is in flight (it still runs, nobody waits for it) and expect all passes again."""
        self._collectives.table.abandon([handle for handle in self._handles if handle > 0])
        self._arm()

    def _arm(self) -> None:
        count = len(self._names)
        self._handles = [_IDLE] * count
        self._left = [self._passes] * count
        self._handed = [None] * count
        self._versions = [0] * count
        self._given = [None] * count
        self._collect = []
        self._lacking = {}
        for index in self._removed:
            self._handles[index] = _SUBMITTED_ELSEWHERE
            self._left[index] = 0
        self.in_flight = False

    # -- during the backward pass ---------------------------------------------------------------------------

    def ready(self, index: int, gradient: T) -> None:
        """The gradient of parameter ``index`` has been accumulated once more.

        Raises:
            AssertionError: more often than ``passes`` since the last :meth:`finish`.
            ValueError, HorovodInternalError: the submission was refused.
            TypeError: the process set is not registered any more.
        """
        left = self._left[index] - 1
        if left:
            if left < 0:
                self._handed[index] = None  # its change is told here
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). "
                    "Increase backward_passes_per_step to accumulate gradients locally. Layers in several "
                    "reentrant checkpoints come once for each: call torch.utils.checkpoint.checkpoint with "
                    f"use_reentrant=False.{self.advice}"
                )
            self._left[index] = left
            self.in_flight = True
            return
        self._left[index] = 0
        self.in_flight = True
        self._handed[index] = gradient
        self._versions[index] = self._version(gradient)
        if self._late:
            return
        if self._plain[index] and self._submit_plain(index, gradient):
            return
        self._ready_otherwise(index, gradient)

    def _submit_plain(self, index: int, gradient: T) -> bool:
        """The common case: one dense gradient, as it is. False: it is none."""
        described = self._peek(gradient)
        if described is None:
            return False
        engine = current_engine()
        name = self._names[index]
        process_set = self._process_set
        try:
            handle = engine.submit(
                _ALLREDUCE,
                name,
                described,
                self._op,
                self._prescale,
                self._postscale,
                0,
                # It may have another number than when the exchange was made, or none.
                0 if process_set is global_process_set else process_set_id(process_set),
                ASYNCHRONOUS,
                gradient,
            )
        except DuplicateNameError as error:
            raise _namesake(name) from error
        self._pending[handle] = (engine, gradient, None, None)
        self._handles[index] = handle
        self._given[index] = gradient
        return True

    def _exchanges_late(self) -> bool:
        """Return whether gradients are better submitted all together when backward has ended: where every
        core computes, an exchange meanwhile takes a core from the computation, on all ranks at once (decision
        24).
        """
        runtime = lifecycle.current()
        choice = runtime.config.overlap_gradients
        if choice != "auto":
            return choice == "0"
        if runtime.cores_per_rank >= self._collectives.frontend.compute_threads() + 1:
            return False
        everybody = self._process_set is global_process_set
        return runtime.share_memory(None if everybody else self._process_set.ranks)

    def _ready_otherwise(self, index: int, gradient: T) -> None:
        if self._deferred:
            return
        group = self._group_of.get(index)
        if group is None:
            self._submit(index, gradient)
        elif not any(self._left[member] for member in group):
            self._submit_group(group)

    # -- before the optimizer's step ------------------------------------------------------------------------

    def finish(self, only: Collection[int] | None = None) -> None:
        """Submit what is still missing, wait for everything and put the results in place.

        Every parameter takes part on every rank, whichever parts of the model were used there; so ranks that
        used different parts still agree on the operations. A parameter that has a gradient on some rank gets
        one on all; one that has none anywhere has none afterwards.

        Args:
            only: parameters to exchange now, of which nothing has been handed over; by default all.

        Raises:
            GradientChangedError: a gradient was changed after it had been handed over. The exchange has come
                to its end, so that other ranks do not wait.
            HorovodInternalError: an exchange failed. The gradients are then unspecified.
        """
        try:
            if only is not None:
                others = (index for index in range(len(self._names)) if index not in only)
                for index in others:
                    self._handles[index] = _SUBMITTED_ELSEWHERE
            elif self.replicas is not None:
                self.replicas.begin()
            changed = [] if self._deferred else self._store.changed(self._handed, self._versions)
            for index, handle in enumerate(self._handles):
                # Submitting a group changes the entries of its later members, hence the second look.
                if handle == _IDLE and self._handles[index] == _IDLE:
                    group = self._group_of.get(index)
                    if group is None:
                        gradient = self._taken(index)
                        if gradient is None:
                            self._submit_absent(index)
                        elif not (self._plain[index] and self._submit_plain(index, gradient)):
                            self._submit(index, gradient)
                    else:
                        self._submit_group(group)
            handles = list(dict.fromkeys(handle for handle in self._handles if handle > 0))
            absent = {self._lacking[place] for place in self._collectives.synchronize_all(handles)}
            for index, collect in self._collect:
                if index not in absent:
                    collect()
            self._store.settle(self._given)
            if changed:
                raise self._changed_error(changed)
        except BaseException:
            self.reset()
            raise
        self._arm()
        self._late = self._exchanges_late()
        if only is None and self.replicas is not None:
            self.replicas.collect()

    def _taken(self, index: int) -> T | None:
        """The gradient that was handed over before its time; if none was, what the parameter has. Where all
        gradients are looked at together before the exchange, they may still be replaced."""
        gradient = None if self._deferred else self._handed[index]
        return self._store.get(index) if gradient is None else gradient

    def _changed_error(self, changed: Sequence[int]) -> GradientChangedError:
        names = [self._names[index] for index in changed]
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        return GradientChangedError(
            f"Rank {lifecycle.current().topology.rank}: the gradient of {names[0]}{more} was changed, "
            "replaced or cleared after backward() had handed it over, and before its exchange with the other "
            f"ranks ended. {self._store.remedy}",
            tensors=names,
        )

    # -- the longer ways ------------------------------------------------------------------------------------

    def _prepared(self, index: int, gradient: T) -> T | None:
        """Return the gradient as it is exchanged: after the functions that may change it locally."""
        if self._prepare_local is None:
            return gradient
        handed = self._handed[index]
        prepared = self._prepare_local(index, gradient)
        if handed is not None and (now := self._store.get(index)) is not None:
            self._handed[index] = now
            self._versions[index] = self._version(now)
        else:
            self._handed[index] = None
        return prepared

    def _submit(self, index: int, given: T) -> None:
        """Submit one gradient that is not dense, contiguous and uncompressed, or whatever it is."""
        gradient = self._prepared(index, given)
        if gradient is None:
            self._submit_absent(index)
            return
        if self._store.is_sparse(index, gradient) and not self._sparse_as_dense:
            self._submit_sparse(index, gradient)
            return
        buffer, collect = self._prepare(index, gradient, self._compressors[index])
        name = self._names[index]
        try:
            self._handles[index] = self._collectives.allreduce(
                buffer, buffer, name, self._op, self._prescale, self._postscale, self._process_set
            )
        except DuplicateNameError as error:
            raise _namesake(name) from error
        self._keep(index, gradient, collect)

    def _submit_absent(self, index: int) -> None:
        """Take part for a parameter that has no gradient on this rank."""
        zero = self._store.zero(index)
        if self._store.is_sparse(index, zero) and not self._sparse_as_dense:
            self._submit_sparse(index, zero)
            return
        buffer, collect = self._prepare_absent(index, zero)
        handle = self._collectives.allreduce(
            buffer,
            buffer,
            self._names[index],
            self._op,
            self._prescale,
            self._postscale,
            self._process_set,
            absent=True,
        )
        self._handles[index] = handle
        self._lacking[handle, 0] = index
        self._collect.append((index, collect))

    def _prepare_absent(self, index: int, zero: T) -> tuple[T, Callable[[], None]]:
        """Memory for the result, and what to do with it if some rank has a gradient."""
        for_tensor = getattr(self._compression, "for_tensor", None)
        # One that remembers something remembers it for the next gradient that there is.
        compressor = self._compression if for_tensor is None else for_tensor(self._names[index])
        buffer, collect = self._prepare(index, zero, compressor)
        return buffer, collect or (lambda: self._store.put(index, zero))

    def _submit_group(self, group: Sequence[int]) -> None:
        """Submit the dense members of ``group`` as one operation, named after the first of them."""
        dense: list[int] = []
        buffers: list[T] = []
        absent: list[int] = []
        prepared: list[tuple[int, T, Callable[[], None] | None]] = []
        for index in group:
            if index in self._removed:
                continue
            given = self._taken(index)
            gradient = None if given is None else self._prepared(index, given)
            tensor = self._store.zero(index) if gradient is None else gradient
            if self._store.is_sparse(index, tensor) and not self._sparse_as_dense:
                self._submit_sparse(index, tensor)
                continue
            collect: Callable[[], None] | None
            if gradient is None:
                absent.append(len(dense))
                buffer, collect = self._prepare_absent(index, tensor)
            else:
                buffer, collect = self._prepare(index, tensor, self._compressors[index])
            dense.append(index)
            buffers.append(buffer)
            prepared.append((index, tensor, collect))
        if not dense:
            return
        name = self._names[dense[0]]
        try:
            handle = self._collectives.grouped_allreduce(
                buffers,
                buffers,
                name,
                self._op,
                self._prescale,
                self._postscale,
                self._process_set,
                absent=absent,
            )
        except DuplicateNameError as error:
            raise _namesake(name) from error
        for index, tensor, collect in prepared:
            self._handles[index] = handle
            self._keep(index, tensor, collect)
        for place in absent:
            self._lacking[handle, place] = dense[place]

    def _keep(self, index: int, gradient: T, collect: Callable[[], None] | None) -> None:
        if collect is None:
            self._given[index] = gradient
        else:
            self._collect.append((index, collect))

    def _submit_sparse(self, index: int, gradient: T) -> None:
        waiting = self._store.sparse_allreduce(gradient, self._names[index], self._op)
        self._handles[index] = _SUBMITTED_ELSEWHERE
        self._collect.append((index, lambda: self._store.put(index, waiting())))

    def _prepare(self, index: int, gradient: T, compressor: Any) -> tuple[T, Callable[[], None] | None]:
        """Memory to reduce in place for ``gradient``, and what to do with the result, if it is not the
        gradient."""
        store = self._store
        dense = store.to_dense(gradient) if store.is_sparse(index, gradient) else gradient
        is_complex = store.is_complex(index)
        numbers = store.as_real(dense) if is_complex else dense
        small, context = compressor.compress(numbers)
        frontend = self._collectives.frontend
        # Ranks may hold a gradient in different orders (channels_last): the row-major order is the common
        # one.
        buffer = small if frontend.peek(small) is not None else self._contiguous(small)
        as_it_is = buffer is numbers and compressor is NoneCompressor and dense is gradient
        if as_it_is and (numbers is gradient or store.share_memory(numbers, gradient)):
            return buffer, None

        def collect() -> None:
            reduced = compressor.decompress(buffer, context)
            if is_complex:
                reduced = store.as_complex(reduced)
            if dense is not gradient:
                reduced = store.to_sparse(reduced, gradient)
            if reduced is not gradient:
                store.put(index, reduced)

        return buffer, collect

    def _contiguous(self, tensor: T) -> T:
        copy = self._collectives.frontend.contiguous_copy(tensor)
        self._collectives.frontend.describe(copy)  # raises for what is wrong beyond the layout
        return copy


def _namesake(name: str) -> DuplicateNameError:
    return DuplicateNameError(
        f"A gradient named {name} is still in flight: another optimizer of this rank has a parameter of this "
        "name, and its gradients have not been used by step() or synchronize() yet. Give every optimizer "
        "names of its own, for example [('critic.' + n, p) for n, p in critic.named_parameters()].",
        tensor=name,
    )
