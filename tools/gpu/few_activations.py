"""A plugin for pytest: leaves out the activations that the sanitized kernels are not compiled for.

Tests that come to one of them nevertheless are skipped. With kernels of all of them, few are enough to try what does
not depend on the formula.

FASTOPS_FEW_ACTIVATIONS is the header that says which these are, by default the GPU emulator's.
"""

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

EMULATED = Path(__file__).resolve().parents[2] / "src/backends/hip/emulator/few_activations.h"
FEW = Path(os.environ.get("FASTOPS_FEW_ACTIVATIONS", EMULATED))
names = set(re.findall(r"X\((\w+),", FEW.read_text()))
absent: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before the tests ask for the table of activations."""
    import fastops

    table = fastops._C.activations()
    absent.update({entry["name"] for entry in table} - names)
    fastops._C.activations = lambda: [entry for entry in table if entry["name"] in names]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that name them, by a parameter or by a sample of samples.py, and those of the error that names them all."""

    def names_absent(item: pytest.Item) -> bool:
        if item.name.startswith("test_unknown_activation"):
            return True
        callspec = getattr(item, "callspec", None)
        values = callspec.params.values() if callspec else []
        words = [word for value in values for word in re.split(r"[-. ]", str(value))]
        return any(word.rstrip("_") in absent for word in words)

    items[:] = [item for item in items if not names_absent(item)]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """The CPU's kernels tell when they are absent; tests/reference.py has nothing to compare with."""
    try:
        return (yield)
    except KeyError as error:
        if error.args[0] not in absent:
            raise
        pytest.skip(f"{error} is left out")
    except NotImplementedError as error:
        if "this build has no kernels of" not in str(error):
            raise
        pytest.skip(str(error))
