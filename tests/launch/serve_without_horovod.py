"""Load exported models where there is no Horovod: ``serve_without_horovod.py ROWS.npy MODEL...``.

Prints for each what the loaders of TensorFlow 1 and 2 answer for the rows, as a line of JSON.
"""

from __future__ import annotations

import json
import sys

sys.modules["horovod"] = None  # type: ignore[assignment]  # importing it raises

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1


def main() -> None:
    rows = np.load(sys.argv[1]).astype(np.float32)
    for folder in sys.argv[2:]:
        with tf.Graph().as_default(), v1.Session() as session:
            signature = v1.saved_model.loader.load(session, ["serve"], folder).signature_def[
                "serving_default"
            ]
            feed = {signature.inputs["rows"].name: rows}
            old = session.run(signature.outputs["scores"].name, feed)
        new = tf.saved_model.load(folder).signatures["serving_default"](rows=tf.constant(rows))["scores"]
        print(json.dumps([old.tolist(), new.numpy().tolist()]), flush=True)


if __name__ == "__main__":
    main()
