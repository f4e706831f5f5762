"""``python -m fastops``: prints what a bug report needs."""

import argparse
import sys
from collections.abc import Sequence

from ._build import version
from ._distributions import namesakes
from .info import info

DESCRIPTION = """\
Prints what a bug report needs: the versions of fastops, torch and Python, the libraries in use, the instruction
set, threads and memory, the environment variables that fastops reads, and which ops have kernels of their own on
the devices at hand. From a program: print(fastops.info()).
"""
EPILOG = "python -m fastops.bench times the ops beside PyTorch's; its --help has the options."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fastops",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastops {version}")
    parser.parse_args(arguments)
    print(info())
    for other in namesakes():
        print(
            f"also installed, another project's package of the name fastops: {other}; uninstall both, then install one"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
