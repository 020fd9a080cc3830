"""Elastic training with TensorFlow: ``hvd.elastic.run`` around a function of a state."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from horovod._keras.copies import VariableCopies
from horovod._keras.elastic import ModelState, runner
from horovod.elastic.state import ObjectState
from horovod.runtime import lifecycle
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.keras_adapter import ADAPTER

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


run = runner(ADAPTER)


class TensorFlowKerasState(ModelState):
    """The state of a model of ``tf.keras``; see ``horovod.tensorflow.keras.elastic.KerasState``."""


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and any number of further keywords, which become attributes.

    Args:
        variables: by default the global variables of the v1 graph.
        session: of the v1 graph; by default the default session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        super().__init__(
            bcast_object=functools.partial(
                broadcast_object, root_rank=0, session=session, name="elastic.state"
            ),
            get_rank=lambda: lifecycle.current().topology.rank,
            **kwargs,
        )
        # Made once: a graph must not grow with every commit.
        self._in_graph = _InGraph(self.variables) if not tf.executing_eagerly() else None
        self._copies = VariableCopies()  # of variables that are not of a graph
        self._keep()

    def save(self) -> None:
        if self._in_graph is not None:
            self._keep()
            super().save()
            return
        self._copies.prepare(self.variables)
        super().save()
        self._copies.adopt()

    def restore(self) -> None:
        if self._in_graph is not None:
            self._session().run(
                self._in_graph.assign, dict(zip(self._in_graph.values, self._kept, strict=True))
            )
        else:
            self._copies.restore()
        super().restore()

    def sync(self) -> None:
        if self._in_graph is not None:
            self._session().run(self._in_graph.broadcast())
        else:
            broadcast_variables(self.variables, root_rank=0)
        super().sync()
        self._keep()  # not before all has come: what is saved is of one moment

    def _session(self) -> Any:
        return self.session or tf.compat.v1.get_default_session()

    def _keep(self) -> None:
        if self._in_graph is not None:
            self._kept = self._session().run(self.variables)
        else:
            self._copies.prepare(self.variables)
            self._copies.adopt()


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
