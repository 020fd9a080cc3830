"""Tables of Spark ML parameters, and the classes that are made from them.

A row of a table becomes a ``Param`` of the class, its ``set...`` and ``get...`` methods, a keyword of its
constructor, and a line of its documentation.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml.param import Param, Params

from horovod.errors import InvalidArgumentError

__all__ = ["HasParameters", "Parameter", "parameters"]

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator or model.

    Attributes:
        name: of the keyword and of the ``Param``.
        default: what it is when it was not set, or set to None.
        text: what it means.
        convert: checks and converts what is set; one of pyspark's ``TypeConverters``. None: anything goes.
        setters, getters: names of further accessors, which scripts know.
        accessors: whether it has the regular ones.
    """

    name: str
    default: Any
    text: str
    convert: Callable[[Any], Any] | None = None
    setters: tuple[str, ...] = ()
    getters: tuple[str, ...] = ()
    accessors: bool = True

    @property
    def accessor(self) -> str:
        """Part of the accessors' names after ``set`` and ``get``: "NumProc" for "num_proc"."""
        return "".join(word[:1].upper() + word[1:] for word in self.name.split("_"))

    def all_setters(self) -> tuple[str, ...]:
        return (*([f"set{self.accessor}"] if self.accessors else []), *self.setters)

    def all_getters(self) -> tuple[str, ...]:
        return (*([f"get{self.accessor}"] if self.accessors else []), *self.getters)


def parameters(table: Sequence[Parameter]) -> Callable[[Class], Class]:
    """A decorator of classes: it gives them the parameters of a table, after those of their base classes. A
    row replaces that of a base class with its name."""

    def decorate(cls: Class) -> Class:
        inherited = getattr(cls, "_table", {})
        mine = {row.name: row for row in table}
        rows = {**inherited, **mine}
        cls._table = rows  # type: ignore[attr-defined]
        for row in mine.values():
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.text, row.convert))
            for name in row.all_setters():
                setattr(cls, name, _setter(row, name))
            for name in row.all_getters():
                setattr(cls, name, _getter(row, name))
        listed = "\n".join(f"    {row.name}: {row.text}" for row in rows.values())
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nArgs:\n{listed}\n"
        keywords = [
            inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default)
            for row in rows.values()
        ]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return cls

    return decorate


def _setter(row: Parameter, name: str) -> Callable[[Any, Any], Any]:
    def setter(self: HasParameters, value: Any) -> Any:
        return self._assign({row.name: value})

    setter.__name__, setter.__doc__ = name, f"Set ``{row.name}``: {row.text}. Returns this object."
    return setter


def _getter(row: Parameter, name: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(row.name)

    getter.__name__, getter.__doc__ = name, f"``{row.name}``: {row.text}."
    return getter


class HasParameters(Params):  # type: ignore[misc]
    """Base of classes with a table of parameters, see :func:`parameters`."""

    _table: dict[str, Parameter]

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._setDefault(**{row.name: copy.copy(row.default) for row in self._table.values()})
        self.setParams(**values)

    def setParams(self, **values: Any) -> Any:
        """Set parameters by name; None: the default. Returns this object.

        Parameters that a subclass has added in the way of Spark ML are among them.

        Raises:
            InvalidArgumentError: there is no such parameter.
        """
        unknown = sorted(name for name in values if not self.hasParam(name))
        if unknown:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no parameter {unknown[0]!r}. It has: {', '.join(self._table)}."
            )
        return self._assign(values)

    def _assign(self, values: dict[str, Any]) -> Any:
        """The same, for all rows of the table."""
        for name, value in values.items():
            if value is None:
                self.clear(self.getParam(name))
                continue
            try:
                self._set(**{name: value})
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{type(self).__name__}: {name} {error}") from None
        return self

    def _value(self, name: str) -> Any:
        """Return a parameter's value, set or by default. A None that a subclass has set counts as unset."""
        found = self.getOrDefault(name)
        return self._defaultParamMap.get(self.getParam(name)) if found is None else found

    if TYPE_CHECKING:  # the accessors come from the table

        def __getattr__(self, name: str) -> Any: ...
