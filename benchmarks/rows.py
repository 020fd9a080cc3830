"""What the programs say about a result: a line for people, and one for a program that collects them."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["say"]


def say(row: Mapping[str, Any], text: str, path: str | None) -> None:
    """Print `text`, and append `row` to the file `path` as a line of JSON, if there is one."""
    print(text, flush=True)
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
