"""``python -m fastops.bench``; says what to install when a library of the extra "bench" is missing."""

import sys


def main() -> int:
    """Runs the command line; gives the exit code."""
    try:
        from . import cli
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("matplotlib", "rich"):
            raise
        sys.exit(f"fastops.bench needs {library}, which is not installed: pip install matplotlib rich")
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
