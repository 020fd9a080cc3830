"""One rank of a random job: does its part of the plan and checks what it gets."""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
from typing import Any

import pytest
import torch
from tests.contract.random_plan import (
    FLOATS,
    OF_ALL_OPERATORS,
    Joining,
    Misuse,
    Operation,
    Planner,
    Sets,
    Step,
    Tensor,
    expected,
    splits_of,
    values,
)

import horovod.torch as hvd

STEP_LIMIT_S = 60.0
ROUNDING = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-5, "float64": 1e-12}


class RandomRank:
    """Runs steps on this rank."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(f"{seed}-rank-{hvd.rank()}")  # orders: each rank has its own
        self._sets: dict[tuple[int, ...], Any] = {tuple(range(hvd.size())): hvd.global_process_set}

    def run(self, step: Step) -> None:
        """Do this rank's part of ``step``.

        Raises:
            AssertionError: what came out is wrong.
        """
        if isinstance(step, Sets):
            for members in step.removed:
                assert hvd.remove_process_set(self._sets.pop(members))
            for members in step.added:
                self._sets[members] = hvd.add_process_set(list(members))
                assert self._sets[members].ranks == list(members)
        elif isinstance(step, Misuse):
            if step.rank == hvd.rank():
                self._misuse(step.what)
        elif isinstance(step, Joining):
            self._join(step)
        else:
            self._traffic([one for one in step.operations if hvd.rank() in one.members])

    def _traffic(self, operations: list[Operation]) -> None:
        self._random.shuffle(operations)
        handles = [(operation, self._submit(operation)) for operation in operations]
        self._random.shuffle(handles)
        for operation, handle in handles:
            if self._random.random() < 0.3:
                hvd.poll(handle)
            if operation.disagreement:
                self._refused(operation, handle, operation.name)
            else:
                self._check(operation, hvd.synchronize(handle))

    def _join(self, step: Joining) -> None:
        if hvd.rank() not in step.first:
            for operation in step.operations:
                handle = self._submit(operation)
                root = operation.said[hvd.rank()][0].root
                if operation.kind == "reduce" and root in step.first:
                    self._refused(operation, handle, f"rank {root} has joined")
                elif operation.kind in OF_ALL_OPERATORS:
                    self._check(operation, hvd.synchronize(handle), step.first)
                else:
                    self._refused(operation, handle, "not supported with Join")
        last = hvd.join()
        assert last not in step.first, f"rank {last} joined last, but was among the first"
        assert hvd.broadcast_object(last, 0, name="joined last") == last

    def _refused(self, operation: Operation, handle: int, text: str) -> None:
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.synchronize(handle)
        assert text in str(caught.value), f"{operation}: {caught.value}"

    def _submit(self, operation: Operation) -> int:
        rank = hvd.rank()
        said = operation.said[rank]
        tensors = [
            torch.tensor(values(self._seed, operation, rank, which)).to(getattr(torch, tensor.dtype))
            for which, tensor in enumerate(said)
        ]
        process_set = self._sets[operation.members]
        first: Tensor = said[0]
        name = operation.name
        factors = {"prescale_factor": first.prescale, "postscale_factor": first.postscale}
        op = getattr(hvd, first.op)
        handle: int
        if operation.kind == "broadcast":
            call = hvd.broadcast_async_ if operation.in_place else hvd.broadcast_async
            handle = call(tensors[0], first.root, name=name, process_set=process_set)
        elif operation.kind == "alltoall":
            splits: Any = first.splits
            if splits is not None and self._random.random() < 0.5:
                splits = torch.tensor(splits, dtype=torch.int32)
            handle = hvd.alltoall_async(tensors[0], splits, name=name, process_set=process_set)
        elif operation.kind == "allgather":
            if operation.grouped:
                handle = hvd.grouped_allgather_async(tensors, name=name, process_set=process_set)
            else:
                handle = hvd.allgather_async(tensors[0], name=name, process_set=process_set)
        else:
            form = ("grouped_" if operation.grouped else "") + operation.kind + "_async"
            form += "_" if operation.in_place else ""
            call = getattr(hvd, form)
            roots = {"root_rank": first.root} if operation.kind == "reduce" else {}
            handle = call(
                tensors if operation.grouped else tensors[0],
                op=op,
                name=name,
                process_set=process_set,
                **factors,
                **roots,
            )
        return handle

    def _check(self, operation: Operation, result: Any, joined: tuple[int, ...] = ()) -> None:
        rank = hvd.rank()
        if operation.kind == "alltoall":
            result, received = result
            place = operation.members.index(rank)
            wanted = [
                splits_of(operation.said[member][0], len(operation.members))[place]
                for member in operation.members
            ]
            assert received.tolist() == wanted, operation
        results = result if operation.grouped else [result]
        for which, (got, said) in enumerate(zip(results, operation.said[rank], strict=True)):
            exact = torch.tensor(expected(self._seed, operation, rank, which, joined))
            wanted_tensor = exact.to(getattr(torch, said.dtype))
            assert got.dtype == wanted_tensor.dtype, operation
            assert got.shape == wanted_tensor.shape, operation
            if said.dtype in FLOATS:
                rounding = ROUNDING[said.dtype]
                # Products of many ranks may leave the range of a type, before the last factor or after it.
                outside = exact.abs() / min(1.0, abs(said.postscale)) > torch.finfo(got.dtype).max
                same = torch.allclose(
                    got.double()[~outside], exact.double()[~outside], rtol=rounding, atol=rounding
                ) and bool(got[outside].isinf().all())
            else:
                same = torch.equal(got, wanted_tensor)
            assert same, f"{operation}: {got} instead of {wanted_tensor}"

    def _misuse(self, what: str) -> None:
        grid = torch.zeros(4, 4)
        size = hvd.size()
        try:
            if what == "not contiguous":
                hvd.allreduce_async(grid.t()[:, 1:], name="misuse")
            elif what == "root outside":
                hvd.broadcast_async(grid, size, name="misuse")
            elif what == "bad splits":
                hvd.alltoall_async(grid, [5] * size, name="misuse")
            elif what == "scalar reducescatter":
                hvd.reducescatter_async(torch.tensor(1.0), name="misuse")
            else:
                only_me = self._sets.get((hvd.rank(),))
                if only_me is None:
                    return
                handle = hvd.allreduce_async(grid, name="twice", process_set=only_me)
                try:
                    hvd.allreduce_async(grid, name="twice", process_set=only_me)
                    hvd.allreduce_async(grid, name="twice", process_set=only_me)
                finally:
                    hvd.synchronize(handle)
        except ValueError:
            return
        raise AssertionError(f"{what}: no ValueError")


def main() -> None:
    """Run a plan; exits with 1 at the first step that goes wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sets", type=int, required=True)
    arguments = parser.parse_args()
    hvd.init(process_sets="dynamic")
    rank = RandomRank(arguments.seed)
    steps = Planner(arguments.seed, hvd.size(), arguments.sets).steps(arguments.steps)
    for number, step in enumerate(steps):
        faulthandler.dump_traceback_later(STEP_LIMIT_S, exit=True)
        try:
            rank.run(step)
        except BaseException:
            print(f"rank {hvd.rank()}, step {number}: {step}", file=sys.stderr)
            raise
    faulthandler.cancel_dump_traceback_later()
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
