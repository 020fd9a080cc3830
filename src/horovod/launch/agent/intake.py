"""Divides what comes from the launcher into requests, and the call that may be among them."""

from __future__ import annotations

import os

from horovod.launch.agent.requests import Attach, Call, Refusal, understood
from horovod.launch.agent.terms import MOST_LINE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.launch.agent.requests import Request


class Intake:
    """`memory_bytes`: what this host has; a call that is larger is refused before it comes."""

    def __init__(self, remote: bool, memory_bytes: int) -> None:
        self.call = -1
        """Memory with the call, once all of it may be there: when the next request is."""
        self._remote = remote
        self._memory_bytes = memory_bytes
        self._input = bytearray()
        self._call_left = 0  # bytes that are still to come
        self._refused = False

    def feed(self, data: bytes) -> None:
        """Take in what was read. After a refusal, everything is ignored."""
        if not self._refused:
            self._input += data

    def begin_again(self) -> None:
        """Begin again with another launcher's input; a call that is there stays."""
        self._input.clear()
        self._refused = False

    def rest(self) -> bytes:
        """Remove and return the bytes that form no complete request yet."""
        left = bytes(self._input)
        self._input.clear()
        return left

    def requests(self) -> list[Request]:
        """The complete requests. If one of them is refused, none is returned.

        Raises:
            Refusal: one does not, or there is no memory for a call.
        """
        try:
            return self._requests()
        except Refusal:
            self._refused = True
            self._input.clear()
            raise

    def _requests(self) -> list[Request]:
        self._keep_call()
        found: list[Request] = []
        at = 0
        while not self._call_left:
            end = self._input.find(b"\n", at)
            if end < 0:
                break
            request = understood(bytes(self._input[at:end]), self._remote)
            at = end + 1
            if isinstance(request, Call):
                self._begin_call(request.size_bytes)
                del self._input[:at]
                at = 0
                self._keep_call()
            else:
                found.append(request)
                if isinstance(request, Attach):  # what follows is for another agent
                    break
        del self._input[:at]
        if not self._call_left and len(self._input) > MOST_LINE_BYTES:
            raise Refusal("a line without an end")
        return found

    def _begin_call(self, size_bytes: int) -> None:
        if self.call >= 0:
            raise Refusal("a second call")
        if size_bytes > self._memory_bytes:
            raise Refusal(f"a call of {size_bytes} bytes: this host has {self._memory_bytes}")
        try:
            self.call = os.memfd_create("farandole-call")
        except AttributeError:
            raise Refusal("a call: it needs Python 3.8 on this host") from None
        except OSError as error:
            raise Refusal(f"a call: {error.strerror}") from error
        self._call_left = size_bytes

    def _keep_call(self) -> None:
        with memoryview(self._input) as whole:
            size = min(len(whole), self._call_left)
            left = whole[:size]
            try:
                while left:
                    left = left[os.write(self.call, left) :]
            except OSError as error:
                raise Refusal(f"no memory for the call: {error.strerror}") from error
            finally:
                left.release()
        self._call_left -= size
        del self._input[:size]


def memory_bytes() -> int:
    """Of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
