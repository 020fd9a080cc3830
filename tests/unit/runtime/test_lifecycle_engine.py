"""The runtime with the native engine: real processes, real descriptors."""

from __future__ import annotations

import pytest
from tests.unit.runtime.test_lifecycle import KEY, run_ranks

from horovod.bootstrap.store.server import StoreServer

pytestmark = pytest.mark.timeout(90)

SUM_AGAIN_AND_AGAIN = """
import array, threading
from horovod import _core
from horovod.runtime import lifecycle
from tests.held import held, left_since
def at(numbers):
    return numbers.buffer_info()[0]
def total(runtime):
    ours = array.array("f", [runtime.topology.rank + 1.0] * 8)
    summed = array.array("f", [0.0] * 8)
    left = array.array("f", ours)
    nobody_waits = runtime.engine.submit(
        0, "y", (at(left), at(left), 8, (8,)), 1, 1.0, 1.0, -1, 0, _core.ASYNCHRONOUS, left)
    handle = runtime.engine.submit(
        0, "x", (at(ours), at(summed), 8, (8,)), 1, 1.0, 1.0, -1, 0, _core.AWAITED)
    runtime.engine.wait(handle)
    kept.append((runtime.engine, nobody_waits))
    return list(summed)
kept = []
for cycle in range(30):
    runtime = lifecycle.start()
    size = runtime.topology.size
    assert total(runtime) == [size * (size + 1) / 2] * 8
    lifecycle.stop()
    del runtime
    if cycle == 1:
        before = held()
assert threading.active_count() == 1
left = left_since(before)
assert not left, left
print("sums agree")
"""


@pytest.mark.parametrize("mode", ["auto", "single"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_thirty_worlds_in_one_process_sum_and_leave_nothing(size: int, mode: str) -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, size, SUM_AGAIN_AND_AGAIN, timeout_s=80.0, HOROVOD_TRANSPORT_GROUPS=mode)
    assert outputs == ["sums agree\n"] * size


@pytest.mark.parametrize("size", [6, 18])
def test_worlds_whose_connections_are_made_later(size: int) -> None:
    """Up to 15 others the fast path asks for all of them at once, beyond that an operation does."""
    script = ALL_TO_ALL + SUM_AGAIN_AND_AGAIN.replace("range(30)", "range(4)").replace(
        "    lifecycle.stop()", "    all_to_all(runtime)\n    lifecycle.stop()"
    )
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(
            server,
            size,
            script,
            timeout_s=80.0,
            HOROVOD_TRANSPORT_GROUPS="single",
            HOROVOD_NETWORK_CONNECT_ALL="1",
        )
    assert outputs == ["sums agree\n"] * size


ALL_TO_ALL = """
import numpy
from horovod import arrays
def all_to_all(runtime):
    size, rank = runtime.topology.size, runtime.topology.rank
    got = arrays.alltoall(numpy.arange(size) + 100 * rank, name="t")
    assert list(got) == [100 * other + rank for other in range(size)], got
"""


FORKS = """
import os
from horovod.runtime import lifecycle
from horovod.errors import HorovodInternalError
runtime = lifecycle.start()
child = os.fork()
if child == 0:
    with open("/proc/net/tcp") as table:
        listening = {line.split()[9] for line in table if line.split()[3] == "0A"}
    for held in os.listdir("/proc/self/fd"):
        try:
            inode = os.readlink(f"/proc/self/fd/{held}").strip("socket:[]")
        except OSError:
            continue
        if inode in listening:
            os._exit(3)
    try:
        lifecycle.current()
    except HorovodInternalError as error:
        assert "after hvd.init()" in str(error)
        raise SystemExit(7)  # an ordinary end: module variables are cleared, the engine with them
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
runtime.engine.submit(5, None, None, 1, 1.0, 1.0, -1, 0, 2)
lifecycle.stop()
print("still together")
"""


@pytest.mark.parametrize(("mode", "size"), [("auto", 2), ("single", 2), ("later", 6)])
def test_end_of_a_forked_child_does_not_disturb_the_world(mode: str, size: int) -> None:
    """Nor does the child listen in the place of its parent."""
    variables = {"HOROVOD_TRANSPORT_GROUPS": mode}
    if mode == "later":
        variables = {"HOROVOD_TRANSPORT_GROUPS": "single", "HOROVOD_NETWORK_CONNECT_ALL": "1"}
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, size, FORKS, timeout_s=60.0, **variables)
    assert outputs == ["still together\n"] * size


WAITS_AGAIN = """
import array
from horovod.runtime import lifecycle
engine = lifecycle.start().engine
values = [array.array("f", [float(i)]) for i in range(3)]
handles = [
    engine.submit(0, f"x{i}", (v.buffer_info()[0], v.buffer_info()[0], 8, (1,)), 1, 2.0, 1.0, -1, 0, 0)
    for i, v in enumerate(values)
]
engine.wait(handles[0])
try:
    engine.wait_all(handles)
except ValueError as error:
    assert f"handle {handles[0]} " in str(error), error
else:
    raise SystemExit("an unknown handle went unnoticed")
assert [list(v) for v in values] == [[0.0], [2.0], [4.0]], values
for handle in handles:
    try:
        engine.wait(handle)
    except ValueError:
        continue
    raise SystemExit(f"handle {handle} was left")
print("all ended")
"""


def test_an_unknown_handle_among_several_does_not_leave_the_others_in_flight() -> None:
    with StoreServer(KEY, job="test") as server:
        outputs = run_ranks(server, 1, WAITS_AGAIN, timeout_s=30.0)
    assert outputs == ["all ended\n"]
