"""Graphs for serving: what the outputs need, and nothing of ours. An op of TensorFlow stands for ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from horovod.errors import InvalidArgumentError
from horovod.tensorflow import export

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _identity_n_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "OP_PREFIX", "IdentityN")


@pytest.fixture
def session() -> Iterator[Any]:
    """A session over a graph with input ``x``, output ``y``, and a training part with the ops of ours."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        weights = v1.get_variable("weights", initializer=[[1.0], [2.0]], use_resource=True)
        y = tf.identity(tf.matmul(x, weights), name="y")
        gradient = tf.gradients(y, weights)[0]
        plain = tf.identity_n([gradient])[0]

        @tf.function  # type: ignore[untyped-decorator]
        def reduced(value: Any) -> Any:
            return tf.identity_n([value])[0]

        used = tf.function(lambda value: value + 1.0)
        tf.identity(used(y), name="more")
        tf.identity(plain + reduced(gradient), name="update")
        session.run(v1.global_variables_initializer())
        yield session


def types(graph: Any) -> set[str]:
    return {node.op for node in [*graph.node, *(n for f in graph.library.function for n in f.node_def)]}


def test_only_what_the_outputs_need_is_left(session: Any) -> None:
    assert "IdentityN" in types(session.graph.as_graph_def())
    graph = export.inference_graph(session, ["y"])
    assert not types(graph) & {"IdentityN", "VarHandleOp", "ReadVariableOp"}
    assert len(graph.library.function) == 0
    by_tensor = export.inference_graph(session, [session.graph.get_tensor_by_name("more:0")])
    assert len(by_tensor.library.function) == 1
    with tf.Graph().as_default(), v1.Session() as other:
        tf.graph_util.import_graph_def(by_tensor, name="")
        assert other.run("more:0", {"x:0": [[3.0, 4.0]]}).tolist() == [[12.0]]


def test_an_output_that_needs_a_collective_is_refused(session: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"update need .*\(IdentityN\)"):
        export.inference_graph(session, ["update"])
    with pytest.raises(InvalidArgumentError, match="at least one output"):
        export.inference_graph(session, [])


def test_a_saved_model_has_the_signature_and_constants(session: Any, tmp_path: Path) -> None:
    graph = session.graph
    x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
    folder = str(tmp_path / "served")
    export.save_inference_model(session, folder, {"rows": x}, {"scores": y})
    with tf.Graph().as_default(), v1.Session() as other:
        model = v1.saved_model.loader.load(other, ["serve"], folder)
        signature = model.signature_def["serving_default"]
        feed = {signature.inputs["rows"].name: [[1.0, 1.0]]}
        assert other.run(signature.outputs["scores"].name, feed).tolist() == [[3.0]]


def test_an_input_that_no_output_needs_is_named(session: Any, tmp_path: Path) -> None:
    with session.graph.as_default():
        unused = v1.placeholder(tf.float32, [])
    y = session.graph.get_tensor_by_name("y:0")
    with pytest.raises(InvalidArgumentError, match="'unused'"):
        export.save_inference_model(session, str(tmp_path / "served"), {"unused": unused}, {"y": y})
