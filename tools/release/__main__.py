"""A release, step by step.

python -m tools.release build check
python -m tools.release tag
python -m tools.release upload
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.release import recipe
from tools.release.headers import HeadersError
from tools.release.targets import ABIS, MACHINES


def main(words: list[str]) -> int:
    """Do the steps in the order in which they are named; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("steps", nargs="+", choices=["tag", "build", "check", "upload"])
    parser.add_argument(
        "--python-include",
        action="append",
        default=[],
        metavar="cp310=FOLDER",
        help="where Python.h of one Python is",
    )
    parser.add_argument("--machine", choices=[machine.name for machine in MACHINES], help="this one only")
    parser.add_argument("--python", choices=[abi.python for abi in ABIS], help="this one only")
    parser.add_argument("--really", action="store_true", help="upload, and do not only say how")
    args = parser.parse_args(words)
    includes = {
        name: Path(folder) for name, _, folder in (text.partition("=") for text in args.python_include)
    }
    machines = tuple(machine for machine in MACHINES if args.machine in (None, machine.name))
    abis = tuple(abi for abi in ABIS if args.python in (None, abi.python))
    try:
        for step in args.steps:
            match step:
                case "tag":
                    print(f"tagged {recipe.tag()}")
                case "build":
                    recipe.build(includes, machines, abis)
                case "check":
                    recipe.check()
                case "upload":
                    recipe.upload(args.really)
    except (recipe.RecipeError, HeadersError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
