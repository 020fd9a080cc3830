"""Facts about the running job, for scripts: the data paths that have carried its collectives."""

from horovod.runtime import lifecycle

__all__ = ["data_paths"]


def data_paths() -> dict[str, tuple[int, int]]:
    """Return the data paths that have carried this rank's collectives since ``init``.

    Returns:
        Name of the path to ``(operations, bytes)``, where bytes are those of the tensors on this rank.
        ``"shm.small"`` and ``"shm.large"``: through shared memory, in one meeting or pipelined;
        ``"shm.direct"``: read out of the memory of the other ranks. ``"shm.fast"`` and ``"tcp.fast"``: on the
        fast path, without the coordinator.

    Raises:
        NotInitializedError: ``init`` was not called.
    """
    return lifecycle.current().engine.paths()
