"""Checking that a library's results are right, before they are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod.bench.peers import Peer
from horovod.bench.sizes import size_name
from horovod.bench.work import Work, describe_wrong, fill

__all__ = ["check"]


def check(peer: Peer, works: Sequence[Work], call: Callable[[], Any], *, in_flight: bool = False) -> str:
    """Run ``call``, which carries out ``works``, once on known inputs.

    Inputs are zero afterwards: zeros stay finite however often they are reduced.

    Args:
        call: what :meth:`Peer.blocking` made of the only work, or :meth:`Peer.in_flight` of all.

    Returns:
        What is wrong on this rank, as a sentence; "" if nothing is.
    """
    for work in works:
        fill(work, peer.rank)
        for result in work.outputs:
            if all(result is not given for given in work.inputs):
                result.zero_()
    returned = call()
    said = ""
    for work, one in zip(works, returned if in_flight else [returned], strict=True):
        wrong = describe_wrong(work, peer.results(work, one), peer.rank, peer.size)
        if wrong and not said:
            said = f"{work.operation} of {size_name(work.size_bytes)} is wrong: {wrong}"
        for tensor in work.inputs:
            tensor.zero_()
    return said
