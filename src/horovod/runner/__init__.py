"""Names that scripts and tools import from here; the launcher itself is `horovod.launch`."""

from horovod.launch.functions import run

__all__ = ["run"]
