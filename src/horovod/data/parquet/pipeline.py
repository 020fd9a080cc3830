"""Blocks on their way from the files to the loop, read by threads ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

from numpy import concatenate

from horovod.data.parquet.loading import Arrays, Loading
from horovod.data.parquet.plan import Block, Piece

__all__ = ["batches_of", "loaded"]


def loaded(plan: Iterator[Block], loading: Loading, workers: int, ahead_bytes: int) -> Iterator[Arrays]:
    """The blocks of ``plan`` in its order. Closing the iterator ends its threads.

    Args:
        workers: threads; 0 = everything happens where the iterator is used.
        ahead_bytes: blocks are read ahead while all that are take no more; one in any case.
    """
    if workers == 0:
        for block in plan:
            rows, first = loading.begin(block), 0
            for piece in block.pieces:
                loading.load(piece, first, rows)
                first += len(piece)
            yield rows.arrays()
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
    begun = pool.submit(loading.begin, block)
    firsts = accumulate((len(piece) for piece in block.pieces), initial=0)

    def load(piece: Piece, first: int) -> None:
        loading.load(piece, first, begun.result())

    # Tasks begin in the order of submission: whoever waits for one waits for none that has not begun.
    pieces = [pool.submit(load, piece, first) for piece, first in zip(block.pieces, firsts, strict=False)]

    def all_loaded() -> Arrays:
        for each in pieces:
            each.result()
        return begun.result().arrays()

    return pool.submit(all_loaded)


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
