"""The explorer of made-up measurements, in a browser; without one, or without Playwright, its tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import build_explorer, measurements, write

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the build writes."""
    pytest.importorskip("vl_convert")
    folder = tmp_path_factory.mktemp("explorer")
    other = [record | {"cpu": "Another CPU"} for record in measurements()[:6]]
    build_explorer.build(folder / "site", [write(folder / "made-up.csv", measurements() + other)])
    return folder / "site"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        # No sandbox, as in a container it cannot be had; the page is ours.
        running = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()
