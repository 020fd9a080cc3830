"""``RandomState``: the generators of random numbers of this process, as a part of an elastic state."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["RandomState"]


class RandomState:
    """The default generators of Python, NumPy and PyTorch, on the host and on each device that is in use.

    Put one into a ``TorchState``: what is drawn after a rollback is what was drawn before. Every rank keeps a
    stream of its own. There are two ways to what a newcomer draws:

    * without ``seed`` the streams are those of the script. A process that joins later begins one that
      follows from rank 0's and its own rank; what a lost rank would have drawn is lost.
    * with ``seed`` the streams begin anew at each commit, from the seed, the rank and the number of commits.
      A process that takes the place of a lost one draws what that would have drawn, so a job of as many ranks
      as before goes on bit for bit.

    A ``DataLoader`` draws one number from PyTorch's generator when a loop over it begins. The loop that goes
    on in the middle of an epoch is one more than there was before: an ``ElasticSampler`` of the same state
    takes that number back. Processes that load data (``num_workers``) have streams of their own, which follow
    from that number and are not kept.

    Args:
        seed: equal on all ranks, not negative.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.commits = 0
        self._rank = 0
        self._synced = False
        self._saved: dict[str, Any] = {}
        self._began: torch.Tensor | None = None  # PyTorch's state at the last commit or rollback

    def save(self) -> None:
        """Keep the present states, or begin new streams if there is a seed."""
        if self.seed is None:
            self._saved = _states()
            self._began = self._saved["torch"]
        else:
            self.commits += 1
            self.restore()

    def restore(self) -> None:
        """Go back to when :meth:`save` had ended."""
        if self.seed is None:
            _set_states(self._saved)
        else:
            _seed([self.seed, self._rank, self.commits])
        self._began = torch.get_rng_state()

    def take_back_loader(self) -> None:
        """Undo what a loader has drawn that goes on where the last commit was made: one number, the seed of
        its processes. Nothing happens if anything else has been drawn since."""
        if self._began is None:
            return
        after = torch.Generator()
        after.set_state(self._began)
        torch.empty((), dtype=torch.int64).random_(generator=after)
        if torch.equal(after.get_state(), torch.get_rng_state()):
            torch.set_rng_state(self._began)

    def sync(self, broadcast: Callable[[Any], Any], rank: int) -> None:
        """Be in step with rank 0, and save that. A collective.

        Args:
            broadcast: returns rank 0's argument on every rank.
            rank: of this process, now.
        """
        self._rank = rank
        if self.seed is not None:
            self.commits = broadcast(self.commits)
            self.restore()
            return
        # Nothing is drawn for it: rank 0's own stream goes on as it was.
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()
        world_was_there, material = broadcast((self._synced, int.from_bytes(digest)))
        if world_was_there and not self._synced:
            _seed([material, rank])
        self._synced = True
        self._saved = _states()
        self._began = self._saved["torch"]


def _states() -> dict[str, Any]:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


def _seed(material: Sequence[int]) -> None:
    """Seed all generators; equal material makes equal streams."""
    numbers = np.random.SeedSequence(material).generate_state(8, np.uint32)
    random.seed(numbers[:4].tobytes())
    np.random.seed(numbers[4:6])
    torch.manual_seed(int(numbers[6]) << 32 | int(numbers[7]))
