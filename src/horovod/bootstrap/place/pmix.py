"""One publish or lookup at the PMIx server that started this process. Run as a program of its own.

    python -I pmix.py LIBRARY publish KEY VALUE
    python -I pmix.py LIBRARY lookup KEY          prints the value, once somebody has published it
    python -I pmix.py LIBRARY size                prints the number of ranks of the job

A program of its own, because PMIx keeps threads and a connection as long as it is initialized, and because an
MPI library that the script uses later must find everything as a launcher left it. Publish and lookup rather
than the collective exchange of PMIx: a lookup waits for rank 0 only, so that a rank that never comes can be
named by those that are there.

Needs nothing but the standard library. Source: PMIx standard 4.1, chapters 3 (structures) and 9 (publish).
"""

from __future__ import annotations

import ctypes
import sys

_NAMESPACE_BYTES = 256
_KEY_BYTES = 512
_EVERY_RANK = 2**32 - 2  # PMIX_RANK_WILDCARD
_STRING, _INT, _UINT32 = 3, 6, 14


class _Proc(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * _NAMESPACE_BYTES), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (
        ("string", ctypes.c_char_p),
        ("integer", ctypes.c_int),
        ("uint32", ctypes.c_uint32),
        ("room", ctypes.c_uint64 * 3),  # the largest member has two pointers and a character
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * _KEY_BYTES), ("flags", ctypes.c_uint32), ("value", _Value))


class _Found(ctypes.Structure):
    _fields_ = (("proc", _Proc), ("key", ctypes.c_char * _KEY_BYTES), ("value", _Value))


def main(words: list[str]) -> int:
    """Returns the exit status: 0 or 1, with the reason on standard error."""
    library, verb, *rest = words
    pmix = ctypes.CDLL(library)
    me = _Proc()
    _check(pmix, "PMIx_Init", pmix.PMIx_Init(ctypes.byref(me), None, ctypes.c_size_t(0)))
    try:
        if verb == "publish":
            _publish(pmix, *rest)
        elif verb == "lookup":
            print(_lookup(pmix, *rest))
        else:
            print(_size(pmix, me))
    finally:
        pmix.PMIx_Finalize(None, ctypes.c_size_t(0))
    return 0


def _publish(pmix: ctypes.CDLL, key: str, value: str) -> None:
    keys = (ctypes.c_char_p * 2)(key.encode(), None)
    pmix.PMIx_Unpublish(keys, None, ctypes.c_size_t(0))  # what an earlier program of the same job left
    info = _Info(key.encode(), 0, _Value(_STRING, _Data(string=value.encode())))
    _check(pmix, "PMIx_Publish", pmix.PMIx_Publish(ctypes.byref(info), ctypes.c_size_t(1)))


def _lookup(pmix: ctypes.CDLL, key: str) -> str:
    found = _Found()
    found.key = key.encode()
    wait = _Info(b"pmix.wait", 0, _Value(_INT, _Data(integer=0)))  # until it is there
    code = pmix.PMIx_Lookup(ctypes.byref(found), ctypes.c_size_t(1), ctypes.byref(wait), ctypes.c_size_t(1))
    _check(pmix, "PMIx_Lookup", code)
    if found.value.type != _STRING:
        raise SystemExit(f"PMIx_Lookup gave a value of type {found.value.type}")
    return str(found.value.data.string.decode())


def _size(pmix: ctypes.CDLL, me: _Proc) -> int:
    everybody = _Proc(me.namespace, _EVERY_RANK)
    value = ctypes.POINTER(_Value)()
    code = pmix.PMIx_Get(
        ctypes.byref(everybody), b"pmix.job.size", None, ctypes.c_size_t(0), ctypes.byref(value)
    )
    _check(pmix, "PMIx_Get", code)
    if value.contents.type != _UINT32:
        raise SystemExit(f"PMIx_Get gave a value of type {value.contents.type}")
    return int(value.contents.data.uint32)


def _check(pmix: ctypes.CDLL, what: str, code: int) -> None:
    if code != 0:
        pmix.PMIx_Error_string.restype = ctypes.c_char_p
        raise SystemExit(f"{what}: {pmix.PMIx_Error_string(code).decode()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
