"""The net under data-parallel training: ranks compare fingerprints of their weights after the first step,
then ever more rarely, and tell which differ, where and why.

A comparison belongs to an exchange of gradients that all ranks make anyway, by its number since the world was
formed. Each rank puts the fingerprints of its weights into a row of its own of a small array, whose sum over
the ranks gives all rows to all; nothing waits for it. The rows of ranks that have joined stay empty.

A framework says what the weights are, as :class:`Weights`; everything else is here.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Sum
from horovod.errors import HorovodError, MismatchError, ReplicasDifferError
from horovod.gradients.replica_report import Finding, ReplicaRow, find, sentence
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import own_variable
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, member_count

__all__ = [
    "RARELY",
    "Replicas",
    "Weights",
    "broadcasts",
    "comes_after",
    "exchanges_others",
    "references",
    "replicas_of",
    "rewind",
]

_log = logging.getLogger("horovod")

Array: TypeAlias = "np.ndarray[Any, Any]"

RARELY: Final = 1 << 10
"""Most steps between two comparisons."""

_NEVER: Final = -1

_PATIENCE_S: Final = 60.0
"""Time until a comparison that all ranks have begun must be complete."""

_REMEDY: Final = "hvd.broadcast_variables(variables, root_rank=0) or BroadcastGlobalVariablesCallback(0)"


def comes_after(step: int, joins: int) -> bool:
    """Return whether replicas are compared so many steps after the last of ``joins`` joins of all ranks.

    They are after steps 1, 2, 4, 8 and so on, and then every 1024. The more joins there were, the fewer are
    compared of the first steps after one: short epochs that end with a join would compare too often."""
    if step == 1:
        return _is_power(joins + 1)
    often = step % RARELY == 0 if step > RARELY else _is_power(step)
    return often and step >= min(1 << min(joins, 10), RARELY)


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@dataclass(frozen=True)
class Weights:
    """The weights of this rank at one moment.

    Attributes:
        names: of the tensors, in an order that all ranks share.
        layout: shapes and dtypes, as text, and names where all ranks have the same.
        fingerprints: by tensor, 64 bits.
        telling: by tensor, whether a difference is a fault.
        covered: whether a broadcast has written each tensor.
    """

    names: Sequence[str]
    layout: str
    fingerprints: Sequence[int]
    telling: Sequence[bool]
    covered: Sequence[bool]


class Broadcasts:
    """Tensors of this process that a broadcast of weights has written. Outlives worlds: a survivor of an
    elastic job needs none in the next one.

    Attributes:
        happened: whether there was one at all.
    """

    def __init__(self) -> None:
        self.happened = False
        self._reached: dict[int, Any] = {}
        self._expected: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, references: Iterable[tuple[int, Any]]) -> None:
        """Weights are now those of the root.

        Args:
            references: after the address, or the number of the object, a weak one to what is there. Those to
                the same are equal, and others never: freed memory may become that of other weights.
        """
        self.happened = True
        self._reached.update(references)

    def reached(self, place: int, reference: Any) -> bool:
        """Return whether a broadcast has written what is at ``place``, where now ``reference`` leads to."""
        known = self._reached.get(place)
        return type(known) is type(reference) and bool(known == reference)

    def expect(self, by: Any) -> None:
        """The object ``by`` will broadcast later, as callbacks of Keras do: until then weights may differ."""
        self._expected.add(by)

    def settle(self, by: Any) -> None:
        """The object ``by`` has done it, or will not."""
        self._expected.discard(by)

    @property
    def expected(self) -> bool:
        """Return whether somebody will broadcast."""
        return len(self._expected) > 0


broadcasts: Final = Broadcasts()


class Reference(weakref.ref[Any]):
    """Weak one to a variable, equal to those to the same object while that lives. Variables themselves may
    compare element by element."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        mine = self()
        return mine is not None and isinstance(other, Reference) and other() is mine


def references(variables: Iterable[Any]) -> list[tuple[int, Reference]]:
    """Numbers of ``variables`` of any framework, as objects, and references to them."""
    return [(id(own), Reference(own)) for own in map(own_variable, variables)]


@dataclass
class _Comparison:
    """One that is under way. ``rows``: those of ``members``, in the end."""

    rows: Array
    members: Sequence[int]
    names: Sequence[str]


class Replicas:
    """The comparisons of one set of weights, such as those of an optimizer.

    Args:
        name: begins the names of the operations.
        process_set: ranks whose weights are equal.
        weigh: gives the weights of now.
        remedy: the call that makes weights equal, for the message.
        bypassed: these are weights of steps that have exchanged nothing: the cause that the message names.
        in_order: a rank begins no exchange before it has submitted the comparison of the one before.

    Attributes:
        used: whether there was a step at all.
    """

    def __init__(
        self,
        name: str,
        process_set: ProcessSet,
        weigh: Callable[[], Weights],
        remedy: str,
        *,
        bypassed: str = "",
        in_order: bool = False,
    ) -> None:
        self._name = name
        self._in_order = in_order
        self.describe: Callable[[Sequence[int]], Weights]
        self.process_set = process_set
        self.used = False
        self._weigh = weigh
        self._remedy = remedy
        self._bypassed = bypassed
        self._runtime: lifecycle.Runtime | None = None
        self._joins = 0
        self._first_joins = lifecycle.current().joins.count  # when this was made, in its world
        self._exchanges = 0  # since this world was formed, or all ranks have joined; and so are steps
        self._steps = 0
        self._past = 0  # steps before that, in this world
        self._next = _NEVER  # number of the exchange in which ranks compare
        self._equal_after = 0
        self._joined = False  # since the replicas were equal
        self._told = False
        self._operation = ""
        self._kept: Weights | None = None  # what the next exchange compares
        self._kept_after = 0
        self.counter: Any = None  # of exchanges, in a graph
        self._pending: list[tuple[int, _Comparison]] = []  # with their handles
        _net.checks.add(self)

    # -- the steps of an optimizer --------------------------------------------------------------------------

    def look(self, weigh: Callable[[], Weights] | None = None) -> None:
        """The weights are as the last step has left them: if the next exchange compares, these will be
        compared. ``weigh`` gives them, if not as the one of the constructor does."""
        self._follow()
        self.used = True
        self._steps += 1
        # Some steps make several exchanges: the first one after this counts.
        if 0 <= self._next <= self._exchanges + 1 and self._steps > 1 and not broadcasts.expected:
            self._kept = (weigh or self._weigh)()
            self._kept_after = self._steps - 1

    def begin(self) -> None:
        """An exchange of gradients, in which all ranks take part, begins: compare if its time has come.

        Raises:
            ReplicasDifferError: the last comparison has found a difference, and the setting wants an error.
            MismatchError: some ranks did not take part in it.
        """
        self._follow()
        self._exchanges += 1
        if self._pending:
            self._collect_last()
        if self._kept is not None:
            self._plan()
            kept, self._kept = self._kept, None
            self._submit(kept)

    def visit(self) -> None:
        """An exchange begins, and the weights are as the last step has left them: :meth:`look` and
        :meth:`begin`."""
        self.look()
        self.begin()

    def visit_at(self, exchange: int, weigh: Callable[[], Weights]) -> None:
        """:meth:`visit` where a graph counts the exchanges, from 1 after :meth:`rewind`. It calls in those in
        which replicas are compared, and in the next ones."""
        self._follow()
        self._exchanges = self._steps = exchange - 1
        self.look(weigh)
        self.begin()

    def announce(self) -> bool:
        """:meth:`visit` for whoever can tell the weights later only: whether to :meth:`show` them now."""
        self._follow()
        self.used = True
        self._steps += 1
        self._exchanges += 1
        self._collect_last()
        if not 0 <= self._next <= self._exchanges:
            return False
        self._plan()
        self._kept_after = self._steps - 1
        return self._kept_after > 0 and not broadcasts.expected

    def show(self, weights: Weights) -> None:
        """Compare ``weights``, in the exchange that was announced."""
        self._submit(weights)

    def collect(self) -> None:
        """Judge the comparisons that are complete.

        Raises:
            ReplicasDifferError: one has found a difference, and the setting wants an error.
        """
        while self._pending:
            handle, comparison = self._pending[0]
            try:
                # The first look at a handle says no.
                if not (collectives.poll(handle) or collectives.poll(handle)):
                    return
                del self._pending[0]
                collectives.synchronize(handle)
            except (HorovodError, ValueError):
                self._pending.clear()  # the world has failed: others tell
                return
            self._judge(comparison)

    def _collect_last(self) -> None:
        """:meth:`collect` where the exchange after that of the comparison begins. For an error, on all ranks
        in the same exchange, it has to be complete: it will be soon, if all ranks take part in it."""
        runtime = self._runtime
        assert runtime is not None
        checked = self._in_order and runtime.config.replica_check == "error"
        if checked and self._pending and not collectives.wait_for(self._pending[0][0], _PATIENCE_S):
            raise MismatchError(
                f"Rank {runtime.topology.rank} compared its weights after step {self._kept_after}. "
                f"{_PATIENCE_S:g} s after the exchange of gradients that followed, some ranks have "
                "not. Set HOROVOD_REPLICA_CHECK alike on all ranks, and give all of them the same "
                "variables in the same order."
            )
        self.collect()

    # -- the world ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        runtime = lifecycle.current()
        joins = runtime.joins.count
        if runtime is not self._runtime or joins != self._joins:
            self._restart(runtime, joins)

    def _restart(self, runtime: lifecycle.Runtime, joins: int) -> None:
        """Count anew: ranks that are new, or had less data, begin with the others."""
        if runtime is not self._runtime:
            if self._runtime is not None:
                self._first_joins = 0
            self._runtime = runtime
            self._operation = ""
            self._told = False
            self._equal_after = 0
            self._joined = False
            self._past = 0
        else:
            self._joined = True
            self._past += self._steps
        self._joins = joins
        self._exchanges = self._steps = 0
        self._kept = None
        self._abandon()
        setting = runtime.config.replica_check
        active = setting != "off" and self.process_set.included()
        self._next = 0 if active and member_count(self.process_set) > 1 else _NEVER
        if self._next != _NEVER:
            self._plan()

    def _plan(self) -> None:
        step = max(self._exchanges, 1)
        while not comes_after(step, self._joins - self._first_joins):
            step += 1
        self._next = step + 1

    def rewind(self) -> None:
        """A graph that counts the exchanges counts from 0 again."""
        if self.counter is not None:
            self.counter.assign(0)

    def _abandon(self) -> None:
        collectives.table.abandon([handle for handle, _ in self._pending])
        self._pending.clear()

    # -- the comparison -------------------------------------------------------------------------------------

    def _submit(self, weights: Weights) -> None:
        runtime = self._runtime
        assert runtime is not None
        members = list(self.process_set.ranks or ())
        row = ReplicaRow(
            steps=self._kept_after,
            broadcast=broadcasts.happened,
            covered=all(weights.covered),
            bypassed=bool(self._bypassed),
            fingerprints=weights.fingerprints,
            telling=weights.telling,
        )
        rows = np.zeros((len(members), row.length), np.int64)
        rows[members.index(runtime.topology.rank)] = row.numbers()
        if not self._operation:
            self._operation = _net.operation(self._name, self.process_set, weights)
        # By its number a comparison only meets that of the same exchange.
        name = f"{self._operation}.{self._joins}.{self._exchanges}"
        try:
            handle = collectives.allreduce(rows, rows, name, Sum, 1.0, 1.0, self.process_set)
        except HorovodError:
            self._next = _NEVER  # the world has ended: others tell
            return
        self._pending.append((handle, _Comparison(rows, members, weights.names)))
        if runtime.config.replica_check == "error" and not (self._bypassed or self._in_order):
            collectives.synchronize(handle)  # so that all ranks raise in the same exchange
            self._pending.clear()
            self._judge(_Comparison(rows, members, weights.names))

    def _judge(self, comparison: _Comparison) -> None:
        rows = comparison.rows
        finding = find(
            rows, comparison.members, comparison.names, equal_after=self._equal_after, joined=self._joined
        )
        steps = self._past + int(rows[:, 0].max()) - 1
        if finding is None:
            self._equal_after = steps
            self._joined = False
        elif not self._told:
            # Comparisons go on, as other ranks may not know yet.
            self._told = True
            self._tell(finding, steps)

    def _tell(self, finding: Finding, steps: int) -> None:
        runtime = self._runtime
        assert runtime is not None
        said = sentence(finding, steps, self._remedy, self._bypassed)
        if runtime.config.replica_check == "error":
            raise ReplicasDifferError(said, ranks=finding.ranks, tensors=finding.tensors)
        if runtime.topology.rank == finding.teller:
            _log.warning("%s", said)


def replicas_of(
    settings: GradientSettings,
    variables: Sequence[Any],
    fingerprints: Callable[[Sequence[Any]], Sequence[int]],
    bypassed: str = "",
) -> Replicas:
    """The comparisons of ``variables``, whose gradients are reduced together, all of them at once. The same
    variables get the same object: a tape may be made anew for every step.

    Args:
        variables: of the framework, or of Keras.
        fingerprints: of the values that they have now.
        bypassed: see ``Replicas``.
    """
    own = [own_variable(variable) for variable in variables]
    key = (settings.name, settings.process_set.process_set_id, *map(id, own))
    known = _net.of_variables.get(key)
    if known is not None and all(ref() is each for ref, each in zip(known[0], own, strict=True)):
        return known[1]
    refs = references(own)
    names = [_name_of(variable) for variable in variables]
    layout = repr([(tuple(each.shape), str(each.dtype)) for each in own])

    def weigh() -> Weights:
        return weights_of(names, layout, refs, fingerprints([ref() for _, ref in refs]))

    name, in_order = settings.name or "gradients", not bypassed
    made = Replicas(name, settings.process_set, weigh, _REMEDY, bypassed=bypassed, in_order=in_order)
    made.describe = lambda values: weights_of(names, layout, refs, values)
    _net.of_variables[key] = (
        [ref for _, ref in refs],
        made,
    )  # the numbers of objects that are gone may become those of others
    weakref.finalize(own[0], _net.of_variables.pop, key, None).atexit = False
    return made


def exchanges_others(settings: GradientSettings, variables: Sequence[Any]) -> bool:
    """Return whether gradients of any of ``variables`` were reduced under another name than that of
    ``settings``."""
    own = {id(own_variable(variable)) for variable in variables}
    return any(name != settings.name and not own.isdisjoint(ids) for name, _, *ids in _net.of_variables)


def weights_of(
    names: Sequence[str], layout: str, refs: Sequence[tuple[int, Reference]], prints: Sequence[int]
) -> Weights:
    """Variables, all of which are trained."""
    covered = [broadcasts.reached(place, ref) for place, ref in refs]
    return Weights(names, layout, prints, [True] * len(refs), covered)


def _name_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


class _Net:
    """All comparisons of this process. Implements ``world.Follower``."""

    def __init__(self) -> None:
        self.checks: weakref.WeakSet[Replicas] = weakref.WeakSet()
        # With the variables, by name, process set, and numbers of the objects.
        self.of_variables: dict[Any, tuple[Sequence[Callable[[], Any]], Replicas]] = {}
        self._begun: Counter[tuple[str, int | None]] = Counter()  # in this world

    def operation(self, name: str, process_set: ProcessSet, weights: Weights) -> str:
        """A name for the comparisons of ``weights``: the same on all ranks that compare the same. Others do
        not meet: of those that look alike the order of their first comparison tells."""
        shapes = hashlib.blake2s(weights.layout.encode(), digest_size=4).hexdigest()
        # By the first words the engine knows that nobody waits for this, and that some ranks may not call it.
        whole = f"replicas of {name}.{len(weights.names)}.{shapes}"
        key = whole, process_set.process_set_id
        self._begun[key] += 1
        return f"{whole}.{self._begun[key]}"

    def enter(self, runtime: lifecycle.Runtime) -> None:
        self._begun.clear()
        self.rewind()

    def rewind(self) -> None:
        """Let graphs count their exchanges anew."""
        for check in list(self.checks):
            check.rewind()

    def leave(self) -> None:
        """The world has ended: tell what the last comparisons have found, if they are complete."""
        for check in list(self.checks):
            try:
                check.collect()
            except ReplicasDifferError as error:
                _log.warning("%s", error)


_net: Final = _Net()
rewind: Final = _net.rewind
lifecycle.follow(_net)
