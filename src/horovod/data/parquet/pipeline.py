"""Blocks on their way from the files to the loop, read by threads ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from numpy import concatenate

from horovod.data.parquet.loading import Arrays, Loading
from horovod.data.parquet.plan import Block

__all__ = ["batches_of", "loaded"]


def loaded(plan: Iterator[Block], loading: Loading, workers: int, ahead_bytes: int) -> Iterator[Arrays]:
    """The blocks of ``plan`` in its order. Closing the iterator ends its threads.

    Args:
        workers: threads; 0 = everything happens where the iterator is used.
        ahead_bytes: blocks are read ahead while all that are take no more; one in any case.
    """
    if workers == 0:
        for block in plan:
            yield loading.block(block, [loading.piece(each) for each in block.pieces])
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="parquet")
    ahead: deque[tuple[Future[Arrays], int]] = deque()
    planned = next(plan, None)

    def fits(block: Block) -> bool:
        # Not more blocks than keep the threads busy: of tiny ones the bytes would allow thousands.
        return len(ahead) < 2 * workers and sum(size for _, size in ahead) + block.size_bytes <= ahead_bytes

    try:
        while planned or ahead:
            while planned and (not ahead or fits(planned)):
                ahead.append((_submitted(pool, loading, planned), planned.size_bytes))
                planned = next(plan, None)
            made = ahead.popleft()[0].result()
            if planned and not ahead:  # the next one is read while this one is used
                ahead.append((_submitted(pool, loading, planned), planned.size_bytes))
                planned = next(plan, None)
            yield made
            del made
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ThreadPoolExecutor, loading: Loading, block: Block) -> Future[Arrays]:
    # Tasks begin in the order of submission: whoever joins pieces waits for none that has not begun.
    pieces = [pool.submit(loading.piece, each) for each in block.pieces]
    return pool.submit(lambda: loading.block(block, [each.result() for each in pieces]))


def batches_of(blocks: Iterator[Arrays], batch_size: int) -> Iterator[Arrays]:
    """Batches of equal size, over the borders of blocks; the last one may be smaller."""
    parts: list[Arrays] = []
    missing = batch_size
    for block in blocks:
        start, rows = 0, len(next(iter(block.values())))
        while rows - start >= missing:
            part = {name: values[start : start + missing] for name, values in block.items()}
            start += missing
            missing = batch_size
            if parts:
                parts.append(part)
                yield {name: concatenate([each[name] for each in parts]) for name in part}
                parts = []
            else:
                yield part
        if start < rows:
            # A copy, lest a few rows keep the whole block.
            parts.append({name: values[start:].copy() for name, values in block.items()})
            missing -= rows - start
    if parts:
        yield {name: concatenate([each[name] for each in parts]) for name in parts[0]}
