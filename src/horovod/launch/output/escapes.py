"""Making what ranks print harmless for a terminal: it may have colours, and nothing else that is obeyed.

A rank of another host, or text that a script has from somewhere, could otherwise set the title, write to the
clipboard, move the cursor over what others said, or make the terminal answer as if somebody had typed.
"""

from __future__ import annotations

import re

__all__ = ["harmless"]

# ESC and what belongs to it: control sequences; strings up to their end, if that is in the line; others.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?![]\[PX^_])[ -/]*[0-~]"
)
_COLOURS = re.compile(r"[0-9;:]*")
_CONTROLS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
_SUSPECT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE_END = re.compile(r"([\r\n]+)")
_RESET = "\x1b[0m"


def harmless(lines: bytes) -> bytes:
    """``lines`` without what terminals obey, but for colours, the erasure of a line, tabs and line ends.

    Well-formed sequences are dropped, what is left of others is shown: ``^[``. Colours end with their line.
    Backspaces, which progress bars write before they return to the start of a line, are dropped.
    """
    if not _SUSPECT.search(lines):
        return lines
    text = lines.decode("utf-8", "surrogateescape")
    cleaned = "".join(_cleaned(part) for part in _LINE_END.split(text))
    return cleaned.encode("utf-8", "surrogateescape")


def _cleaned(line: str) -> str:
    coloured = False

    def keep(found: re.Match[str]) -> str:
        nonlocal coloured
        parameters, final = found["parameters"] or "", found["final"]
        if final == "m" and _COLOURS.fullmatch(parameters):
            coloured = True
            return f"\ue000{parameters}m"  # a stand-in for ESC [, which the next step takes away
        return f"\ue000{parameters}K" if final == "K" and parameters in ("", "0", "1", "2") else ""

    line = line.replace("\ue000", "\ufffd").replace("\b", "")
    line = _CONTROLS.sub(_shown, _SEQUENCE.sub(keep, line)).replace("\ue000", "\x1b[")
    return line + _RESET if coloured else line


def _shown(found: re.Match[str]) -> str:
    """A control character as ``^X``; those above ASCII as a replacement character."""
    code = ord(found[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else "\ufffd"
