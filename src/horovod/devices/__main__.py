"""``python -m horovod.devices``: prints what devices there are."""

from __future__ import annotations

import argparse

from horovod.devices.inventory import take_inventory
from horovod.devices.text import facts, section


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(prog="python -m horovod.devices", description="What devices there are.")
    parser.add_argument("--json", action="store_true", help="as programs read it")
    arguments = parser.parse_args()
    inventory = take_inventory()
    if arguments.json:
        import json

        print(json.dumps(facts(inventory), indent=2))
    else:
        print(section(inventory), end="")


if __name__ == "__main__":
    main()
