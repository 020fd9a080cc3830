"""Estimators, models and functions as bytes: stages of pipelines in files, functions for Python workers.

A saved stage is one line of JSON where Spark ML expects the metadata of a stage. Values are pickled: load
only what you trust as you trust a program.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, MLReadable, MLReader, MLWritable, MLWriter

from horovod.errors import InvalidArgumentError
from horovod.launch.calls.functions import pack_call, unpack_call
from horovod.launch.calls.pickles import why_value_unpicklable

__all__ = ["Saveable", "Shipped", "require_picklable"]

# Where a stage runs and keeps its data is of the session that saved it.
_OF_THE_SESSION = frozenset({"backend", "store"})


class Saveable(MLReadable, MLWritable):  # type: ignore[misc]
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


class Shipped:
    """Calls a function, and brings along where it is unpickled what it needs: as `horovod.spark.run` does.

    Spark pickles classes of modules by their names. Those of a script's own modules are not there on
    executors.

    Args:
        function: may be anything that can be called.
        what: is called so if it cannot be pickled.

    Raises:
        InvalidArgumentError: it cannot be pickled; says which part.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self._function = function
        try:
            self._data = b"".join(pack_call(function, (), {}))
        except Exception as error:
            why = why_value_unpicklable(what, function) or f"{what} cannot be pickled: {error}"
            raise InvalidArgumentError(why) from error

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._data,)


def _opened(data: bytes) -> Callable[..., Any]:
    return unpack_call(memoryview(bytearray(data)))[0]


def require_picklable(owner: str, values: Mapping[str, Any]) -> None:
    """Make sure that parameters can go to the ranks.

    Args:
        owner: whose parameters they are.
        values: by name.

    Raises:
        InvalidArgumentError: one cannot be pickled; says which part of it.
    """
    for name, value in values.items():
        why = why_value_unpicklable(f"parameter {name}", value)
        if why is not None:
            raise InvalidArgumentError(
                f"{owner}: {why} Make it where it is used, on the ranks, or leave it out."
            )
