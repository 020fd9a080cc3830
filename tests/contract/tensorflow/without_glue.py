"""What must hold of the ops made of `tf.numpy_function`, too: one type of each operation, gradients, errors.

Left out: operations in another order on every rank, as these ops run in the order in which they were written.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from tests.contract.tensorflow import collectives, errors, gradients, state
from tests.contract.world import Cases

import horovod.tensorflow as hvd
from horovod.tensorflow import fallback, native

FRAMEWORK = "horovod.tensorflow"

CHOSEN = {
    collectives: [
        "allreduce_sum_float32",
        "allreduce_average_int32",
        "allreduce_max_bfloat16",
        "factors_are_applied_around_the_sum",
        "a_group_is_reduced_together",
        "slices_are_gathered",
        "allgather_float32",
        "broadcast_bool",
        "alltoall_int64",
        "alltoall_of_nothing",
        "groups_are_gathered",
        "rows_are_shared_out",
        "shapes_are_known_as_far_as_they_can_be",
        "an_unused_result_is_exchanged_all_the_same",
        "equal_operations_are_not_merged_and_constants_not_folded",
    ],
    gradients: list(gradients.CASES),
    state: ["variables_become_the_roots", "global_variables", "ranks_that_have_joined_count_as_zeros"],
    errors: ["before_init_and_after_shutdown"],
}

CASES = Cases()
for _module, _names in CHOSEN.items():
    for _name in _names:
        CASES.add_as(f"{_module.__name__.rsplit('.', 1)[-1]}-{_name}", _module.CASES.table[_name])


@CASES.add
def these_ops_are_the_other_ones() -> None:
    assert native.ops is fallback
    assert "TF_ForwardInputOrAllocateOutpuX is missing" in native.problem
    with pytest.warns(RuntimeWarning, match=r"slower.*Please report"):
        native._choose()


@CASES.add
def errors_in_eager_mode_are_those_of_the_ops() -> None:
    if hvd.size() == 1:
        return
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched"):
        hvd.allreduce(tf.ones(2 + hvd.rank()), name="e.shape")
    with pytest.raises(tf.errors.InvalidArgumentError, match="root rank"):
        hvd.broadcast(tf.ones(2), hvd.size())
    function = tf.function(lambda t: hvd.allreduce(t, name="e.function"))
    with pytest.raises(tf.errors.OpError, match="Mismatched"):
        function(tf.ones(2 + hvd.rank()))
