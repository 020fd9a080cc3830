"""Parts of the ops that are made of `tf.numpy_function`."""

from __future__ import annotations

import tensorflow as tf

from horovod.tensorflow import fallback


def test_operations_of_one_name_in_a_graph_are_told_apart() -> None:
    with tf.Graph().as_default(), tf.name_scope("layer"):
        keys = [fallback._key("", False, "HorovodAllreduce_x_0") for _ in range(2)]
        ignored = fallback._key("", True, "HorovodAllreduce_x_0")
        given = [fallback._key("a name of one's own", False, None) for _ in range(2)]
    assert keys == ["layer/HorovodAllreduce_x_0", "layer/HorovodAllreduce_x_0_1"]
    assert ignored == "HorovodAllreduce_x_0_2"
    assert given == ["layer/a name of one's own"] * 2
    assert [fallback._key("given", False, None), fallback._key("", False, None)] == ["given", None]
