"""A plugin for pytest: leaves out the activations that the sanitized kernels are not compiled for."""

import re
from pathlib import Path

import pytest

FEW = Path(__file__).resolve().parents[2] / "src/backends/hip/emulator/few_activations.h"
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
    """Tests that name them."""

    def names_absent(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        return callspec is not None and any(
            value in absent for value in callspec.params.values() if isinstance(value, str)
        )

    items[:] = [item for item in items if not names_absent(item)]
