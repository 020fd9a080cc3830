"""Elastic training with TensorFlow: ``hvd.elastic.run`` around a function of a state."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from horovod._keras.copies import VariableCopies
from horovod._keras.elastic import ModelState, runner
from horovod._keras.iterators import Positions, is_iterator
from horovod.elastic.state import ObjectState
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.keras_adapter import ADAPTER

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


run = runner(ADAPTER)


class TensorFlowKerasState(ModelState):
    """The state of a model of ``tf.keras``; see ``horovod.tensorflow.keras.elastic.KerasState``."""


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and any number of further keywords, which become attributes.

    Two kinds of keywords are not pickled: of a ``tf.data`` iterator the position is kept, and of a
    ``tf.random.Generator`` the state. :meth:`sync` leaves each rank its own generators, and its own positions
    if it has saved as often as rank 0; else it takes over those of rank 0.

    Args:
        variables: by default the global variables of the v1 graph.
        session: of the v1 graph; by default the default session, at each call.

    Raises:
        ValueError: the variables are of a graph, and there is no session; or the position of an iterator
            cannot be saved.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        self._generators = {name: v for name, v in kwargs.items() if isinstance(v, tf.random.Generator)}
        self._positions = Positions({name: each for name, each in kwargs.items() if is_iterator(each)})
        apart = {**self._generators, **self._positions.iterators}
        super().__init__(
            bcast_object=functools.partial(
                broadcast_object, root_rank=0, session=session, name="elastic.state"
            ),
            get_rank=lambda: lifecycle.current().topology.rank,
            **{name: each for name, each in kwargs.items() if name not in apart},
        )
        for name, each in apart.items():
            setattr(self, name, each)
        # Made once: a graph must not grow with every commit.
        self._in_graph = _InGraph(self.variables) if not tf.executing_eagerly() else None
        self._copies = VariableCopies()  # of variables that are not of a graph
        self._prepare()
        self._adopt()

    def save(self) -> None:
        self._prepare()
        super().save()
        self._adopt()

    def restore(self) -> None:
        if self._in_graph is not None:
            self._session().run(
                self._in_graph.assign, dict(zip(self._in_graph.values, self._kept, strict=True))
            )
        self._copies.restore()
        self._positions.restore()
        super().restore()

    def sync(self) -> None:
        """Take over the state of rank 0. A collective.

        Raises:
            HorovodInternalError: rank 0 syncs another state; or the world failed.
            tensorflow.errors.OpError: the same within a session; ``hvd.elastic.run`` knows it.
        """
        parts = ["variables", *self._generators, *self._positions.iterators, *self._saved_state]
        saves = self._meet(parts, self._positions.saves)
        if self._in_graph is not None:
            self._session().run(self._in_graph.broadcast())
        else:
            broadcast_variables(self.variables, root_rank=0)
        self._prepare()
        self._positions.sync(self._bcast_object, self._rank(), saves)
        super().sync()
        self._adopt()  # not before all has come: what is saved is of one moment

    def __setattr__(self, name: str, value: Any) -> None:
        if (positions := self.__dict__.get("_positions")) is not None and name in positions.iterators:
            positions.replace(name, value)
        super().__setattr__(name, value)

    def _session(self) -> Any:
        session = self.session or tf.compat.v1.get_default_session()
        if session is None:
            raise InvalidArgumentError(
                "The variables of a TensorFlowState are of a graph, and there is no session: pass session=, "
                "or use the state within `with session.as_default():`."
            )
        return session

    def _prepare(self) -> None:
        if self._in_graph is not None:
            self._new = self._session().run(self.variables)
        variables = self.variables if self._in_graph is None else []
        self._copies.prepare([*variables, *(each.state for each in self._generators.values())])
        self._positions.prepare()

    def _adopt(self) -> None:
        if self._in_graph is not None:
            self._kept = self._new
        self._copies.adopt()
        self._positions.adopt()


class _InGraph:
    """The operations of a state on variables of a v1 graph."""

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables
        self._broadcast: Any = None
        self.values = [
            tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape) for variable in variables
        ]
        self.assign = [
            tf.compat.v1.assign(variable, value)
            for variable, value in zip(variables, self.values, strict=True)
        ]

    def broadcast(self) -> Any:
        if self._broadcast is None:
            self._broadcast = broadcast_variables(self._variables, root_rank=0)
        return self._broadcast
