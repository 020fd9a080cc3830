"""Saving and loading of estimators and models, as stages of Spark ML pipelines do it.

What is saved is one line of JSON where Spark ML expects the metadata of a stage. Values are pickled: load
only what you trust as you trust a program.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, MLReadable, MLReader, MLWritable, MLWriter

from horovod.errors import InvalidArgumentError

__all__ = ["Saved"]

# Where a stage runs and keeps its data is of the session that saved it.
_OF_THE_SESSION = frozenset({"backend", "store"})


class Saved(MLReadable, MLWritable):  # type: ignore[misc]
    """Base of classes that can be saved and loaded: ``instance.save(path)``, ``Class.load(path)``. The
    backend and the store are not saved; set them again before :meth:`fit`.
    """

    def write(self) -> Any:
        """A writer, with ``save(path)`` and ``overwrite()``."""
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        """A reader, with ``load(path)``."""
        return _Reader(cls)

    def _packed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values of parameters as cloudpickle can carry them; frameworks know how for theirs."""
        return values

    @classmethod
    def _unpacked(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Undo :meth:`_packed`."""
        return values


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        """Write below ``path``: through the store if there is one, otherwise by Spark."""
        instance = self._instance
        text = json.dumps(
            {
                "class": f"{type(instance).__module__}.{type(instance).__name__}",
                "timestamp": round(time.time() * 1000),
                "sparkVersion": self.sparkSession.version,
                "uid": instance.uid,
                "paramMap": _encoded(instance),
                "defaultParamMap": {},
                "language": "Python",
            }
        )
        store = instance.getStore() if instance.hasParam("store") else None
        if store is None:
            self.sparkSession.createDataFrame([(text,)], "value string").coalesce(1).write.text(
                _metadata_path(path)
            )
            return
        file = f"{_metadata_path(path)}/part-00000"
        if store.exists(file) and not self.shouldOverwrite:
            raise FileExistsError(f"{path} exists. To replace it: write().overwrite().save(path).")
        store.write_text(file, text)


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, cls: Any) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Read what was saved at ``path``.

        Raises:
            InvalidArgumentError: something else was saved there.
        """
        saved = json.loads(self.sparkSession.read.text(_metadata_path(path)).first()[0])
        found = DefaultParamsReader._DefaultParamsReader__get_class(saved["class"])
        if not issubclass(found, self._cls):
            raise InvalidArgumentError(f"{path} has a {saved['class']}, not a {self._cls.__name__}.")
        instance = found()
        instance._resetUid(saved["uid"])
        values = {name: cloudpickle.loads(base64.b64decode(text)) for name, text in saved["paramMap"].items()}
        return instance.setParams(**found._unpacked(values))


def _metadata_path(path: str) -> str:
    return f"{path.rstrip('/')}/metadata"


def _encoded(instance: Any) -> dict[str, str]:
    """The parameters that were set, pickled and in base64."""
    values = {
        param.name: value for param, value in instance._paramMap.items() if param.name not in _OF_THE_SESSION
    }
    found = {}
    for name, value in instance._packed(values).items():
        try:
            found[name] = base64.b64encode(cloudpickle.dumps(value)).decode()
        except Exception as error:
            raise InvalidArgumentError(
                f"Parameter {name} of {type(instance).__name__} cannot be saved: {error}"
            ) from error
    return found
