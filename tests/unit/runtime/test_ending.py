"""How the end of a script is named."""

from __future__ import annotations

from horovod.launch.calls.pickles import pack, unpack
from horovod.launch.calls.plain import plain_error
from horovod.runtime import ending


def test_an_exit_is_shown_and_sent_as_what_the_script_has_called() -> None:
    error = ending._Exit(3)
    assert ending.describe(error) == "SystemExit: 3"
    assert plain_error(error) == ("SystemExit", (3,))
    again = unpack(memoryview(bytearray(b"".join(pack(error)))))
    assert type(again) is SystemExit
    assert again.code == 3
