"""Join: a rank that has no more data lets the others go on."""

from __future__ import annotations

from typing import Final

from horovod import _core
from horovod.collectives.base import AWAITED, Base, current_engine
from horovod.collectives.frontend import T
from horovod.collectives.ops import Sum
from horovod.runtime import lifecycle

__all__ = ["Join"]

_JOIN: Final[int] = _core.JOIN


class Join(Base[T]):
    def join(self) -> int:
        """Return after every rank has joined: the one that was last. Until then this rank takes part in the
        others' allreduces, with zeros.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        engine = current_engine()
        last = engine.wait(engine.submit(_JOIN, None, None, Sum, 1.0, 1.0, 0, 0, AWAITED))
        assert isinstance(last, int)
        lifecycle.current().joins.count += 1
        return last
