"""Variables, objects, process sets and join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.tensorflow.ways import every_way, float32, same
from tests.contract.world import Cases

import horovod.tensorflow as hvd

v1 = tf.compat.v1
CASES = Cases()


def variables() -> list[tf.Variable]:
    kinds = (tf.uint8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool)
    return [tf.Variable(tf.cast(tf.fill([2, i + 1], hvd.rank()), kind)) for i, kind in enumerate(kinds)]


@CASES.add
def variables_become_the_roots() -> None:
    for root in range(hvd.size()):
        for inplace in (False, True):
            made = variables()
            assert hvd.broadcast_variables(made, root, inplace=inplace) is None
            for variable in made:
                value = bool(root) if variable.dtype == tf.bool else root
                same(tf.cast(variable, tf.int32).numpy(), np.full(variable.shape, value, np.int32))
    assert hvd.broadcast_variables([], 0) is None


@CASES.add
def variables_of_keras_have_no_names_of_their_own() -> None:
    import keras

    layers = [keras.layers.Dense(3) for _ in range(2)]
    for layer in layers:
        layer.build((None, 2))
        layer.kernel.assign(np.full((2, 3), hvd.rank(), np.float32))
    weights = [weight for layer in layers for weight in layer.weights]
    hvd.broadcast_variables(weights, hvd.size() - 1)
    for layer in layers:
        same(layer.kernel.numpy(), np.full((2, 3), hvd.size() - 1, np.float32))


@CASES.add
def in_place_broadcast_returns_the_new_values() -> None:
    root = hvd.size() - 1
    made = variables()
    for variable, value in zip(made, hvd.broadcast_(made, root), strict=True):
        assert value.dtype == variable.dtype
        same(tf.cast(value, tf.int32).numpy(), tf.cast(variable, tf.int32).numpy())
    for use_resource in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("v", initializer=[float(hvd.rank())], use_resource=use_resource)
            (value,) = hvd.broadcast_([variable], root)
            session.run(v1.global_variables_initializer())
            same(session.run(value), float32([root]))
            same(session.run(variable), float32([root]))
    with tf.Graph().as_default():
        kinds = [v1.get_variable(f"v{i}", initializer=[1.0], use_resource=bool(i)) for i in range(2)]
        with pytest.raises(ValueError, match="reference"):
            hvd.broadcast_(kinds, 0)


@CASES.add
def global_variables() -> None:
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    for use_resource in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            value = v1.get_variable("v", initializer=[float(hvd.rank())], use_resource=use_resource)
            local = v1.get_local_variable("l", initializer=[float(hvd.rank())])
            update = hvd.broadcast_global_variables(hvd.size() - 1)
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(update)
            same(session.run(value), float32([hvd.size() - 1]))
            same(session.run(local), float32([hvd.rank()]))


@CASES.add
def the_hook_broadcasts_when_a_session_begins() -> None:
    with tf.Graph().as_default():
        value = v1.get_variable("v", initializer=[float(hvd.rank())])
        v1.train.get_or_create_global_step()
        hook = hvd.BroadcastGlobalVariablesHook(hvd.size() - 1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            same(session.run(value), float32([hvd.size() - 1]))


@CASES.add
def objects() -> None:
    r, n = hvd.rank(), hvd.size()
    sent = {"rank": r, "list": list(range(r))}
    for root in range(n):
        got = hvd.broadcast_object(sent if r == root else None, root)
        assert got == {"rank": root, "list": list(range(root))}
    own = {"rank": r} | ({"extra": 1} if r == 0 else {})
    assert hvd.allgather_object(own) == [{"rank": k} | ({"extra": 1} if k == 0 else {}) for k in range(n)]
    with tf.Graph().as_default(), v1.Session() as session:
        send = hvd.broadcast_object_fn(session=session)
        for i in range(3):
            assert send((i, r)) == (i, 0)


@CASES.add
def collectives_of_a_process_set() -> None:
    r, n = hvd.rank(), hvd.size()
    if n < 3:
        return
    sets = [hvd.add_process_set(range(0, n, 2)), hvd.add_process_set(range(1, n, 2))]
    own = sets[r % 2]
    members = own.ranks or []
    other = sets[1 - r % 2]
    outsider = (other.ranks or [])[0]
    k = len(members)

    def run(t: Any) -> Any:
        rows, received = hvd.alltoall(t[: 1 * k], splits=[1] * k, process_set=own)
        return {
            "sum": hvd.allreduce(t, op=hvd.Sum, process_set=own),
            "group": hvd.grouped_allreduce([t], process_set=own)[0],
            "gather": hvd.allgather(t[:1], process_set=own),
            "broadcast": hvd.broadcast(t, members[-1], process_set=own),
            "scatter": hvd.reducescatter(t[:k], op=hvd.Sum, process_set=own),
            "rows": rows,
            "received": received,
            "size": hvd.size_op(own.process_set_id or 0),
            "other": hvd.process_set_included_op(other.process_set_id or 0),
        }

    try:
        for got in every_way(run, np.full(4, float(r), np.float32)).values():
            same(got["sum"], np.full(4, sum(members), np.float32))
            same(got["group"], np.full(4, sum(members) / k, np.float32))
            same(got["gather"], float32(members))
            same(got["broadcast"], np.full(4, members[-1], np.float32))
            same(got["scatter"], float32([sum(members)]))
            same(got["rows"], float32(members))
            same(got["received"], np.ones(k, np.int32))
            assert (int(got["size"]), int(got["other"])) == (k, 0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="member"):
            hvd.allreduce(tf.ones(1), process_set=other)
        with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
            hvd.broadcast(tf.ones(1), outsider, process_set=own)
        assert hvd.allgather_object(r, process_set=own) == members
        value = tf.Variable([float(r)])
        hvd.broadcast_variables([value], members[0], process_set=own)
        same(value.numpy(), float32(members[:1]))
        with tf.GradientTape() as tape:
            x = tf.Variable(tf.ones(k))
            loss = tf.reduce_sum(hvd.reducescatter(x, op=hvd.Sum, process_set=own))
            loss += tf.reduce_sum(hvd.allgather(x, process_set=own))
        same(tape.gradient(loss, x).numpy(), np.full(k, k + 1.0, np.float32))
    finally:
        hvd.allgather_object(None)
        for each in sets:
            assert hvd.remove_process_set(each)
    made_up = hvd.ProcessSet([0])
    made_up.process_set_id = 999
    with pytest.raises(ValueError, match="does not exist"):
        hvd.allreduce(tf.ones(1), process_set=made_up)


@CASES.add
def ranks_that_have_joined_count_as_zeros() -> None:
    r, n = hvd.rank(), hvd.size()
    if n == 1:
        assert int(hvd.join()) == 0
        return
    for first in range(2):
        if r != first:
            same(hvd.allreduce(tf.ones(2), op=hvd.Sum, name="join.sum").numpy(), float32([n - 1] * 2))
            same(hvd.allreduce(tf.ones(2), name="join.mean").numpy(), float32([(n - 1) / n] * 2))
        last = int(hvd.join())
        assert last != first or n == 1
        assert hvd.allgather_object(last) == [last] * n
