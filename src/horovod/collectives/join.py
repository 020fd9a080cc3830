"""Join: a rank that has no more data lets the others go on."""

from __future__ import annotations

from horovod.collectives.base import Base, current_engine
from horovod.collectives.frontend import T

__all__ = ["Join"]


class Join(Base[T]):
    def join(self) -> int:
        """Return after every rank has joined: the one that was last. Until then this rank takes part in the
        others' allreduces, with zeros.

        Raises:
            HorovodInternalError: not initialised; a rank was lost.
        """
        engine = current_engine()
        last = engine.wait(engine.join())
        assert isinstance(last, int)
        return last
