"""The command line of a compute job, whatever starts its processes."""

from __future__ import annotations

import argparse

from horovod.tensorflow.data.compute_config import TfDataServiceConfig

__all__ = ["parser_of"]


def parser_of(program: str, description: str) -> argparse.ArgumentParser:
    """Of ``configfile``, ``--dispatchers``, ``--dispatcher-side`` and ``--timeout``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "configfile",
        help="file that tells the training job where this job is; it holds a key, so it is made readable for "
        "you alone, and removed at the end",
    )
    parser.add_argument(
        "--dispatchers",
        type=int,
        default=1,
        metavar="N",
        help="how many dispatchers: 1, or one for each rank of the training job (default: 1)",
    )
    parser.add_argument(
        "--dispatcher-side",
        choices=TfDataServiceConfig.SIDES,
        default="compute",
        help="which job runs the dispatchers (default: compute)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="seconds that either job waits for the other (default: 60)",
    )
    return parser
