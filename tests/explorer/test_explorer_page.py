"""The page in a browser: it shows what the form says, by mouse and keyboard, on wide and narrow screens, offline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import build_explorer

Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, site: Path) -> Iterator[Open]:
    """Opens the page as a file; afterwards nothing may have been wrong, or asked for elsewhere."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_at(address: str = "", width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 844}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri() + address)
        page.wait_for_selector("#chart svg, #chart p")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:"))] == []


def names(page: Any) -> list[str]:
    return page.locator("#table tbody th").all_text_contents()


def drawn(page: Any) -> list[str]:
    """The texts of the chart."""
    page.wait_for_selector("#chart svg")
    return page.locator("#chart svg text").all_text_contents()


def test_begins_with_training(open_page: Open) -> None:
    page = open_page()
    assert page.input_value("#mode") == "training"
    assert names(page) == ["5-15-1-relu"] * 2 + ["17-64-64-6-tanh"] * 2
    assert "slower in 2" in page.text_content("#summary")
    assert "The least ratio is 0.91, beside PyTorch eager: 17-64-64-6-tanh, 1 row" in page.text_content("#summary")


def test_filters(open_page: Open) -> None:
    page = open_page()
    page.select_option("#network", "5-15-1-relu")
    assert names(page) == ["5-15-1-relu"] * 2
    page.select_option("#rows", "64")
    assert names(page) == ["5-15-1-relu"]
    page.select_option("#mode", "")
    assert page.locator("#table tbody td:has-text('inference')").count() == 1
    assert "5-15-1-relu" not in " ".join(drawn(page)), "names have what differs alone"
    page.select_option("#suite", "elementwise")
    assert page.input_value("#rows") == "2^16", "of many cases, those of the size in the middle"
    assert len(names(page)) == 60
    page.select_option("#rows", "")
    assert len(names(page)) == 180
    assert "the first 120 of 180 cases" in page.text_content("#chart-caption")


def test_peers(open_page: Open) -> None:
    page = open_page()
    headings = page.locator("#table thead th")
    assert "ratio to torch.compile" in headings.all_text_contents()
    page.get_by_label("torch.compile").uncheck()
    assert "ratio to torch.compile" not in headings.all_text_contents()
    assert "peers=eager" in page.url
    page.get_by_label("PyTorch eager").uncheck()
    assert page.text_content("#summary").startswith("Nothing to compare")


def test_other_machine(open_page: Open) -> None:
    page = open_page()
    page.select_option("#cpu", label="Another CPU, 2 threads, torch 2.13.0")
    assert "Another CPU, 2 threads on 2 core(s), AVX2; fastops 0.1.0" in page.text_content("#machine")
    assert names(page) == ["5-15-1-relu"]


def test_losses_are_marked_in_words(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#table td.slower").all_text_contents() == ["▼ 0.91 slower0.88 to 0.95"] * 2
    assert drawn(page).count("0.91 ▼ slower") == 2
    hollow = page.locator("#chart svg .mark-rect path[fill-opacity='0']")
    assert hollow.count() == 2


def test_what_was_not_measured_is_said(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#table td:text-is('n/a')").count() == 2
    assert page.locator("#notes li").all_text_contents() == ["torch.compile, n/a: it is for CPUs"]


def test_order(open_page: Open) -> None:
    page = open_page()
    page.select_option("#order", "losses")
    assert names(page)[0] == "17-64-64-6-tanh"
    page.select_option("#order", "gains")
    assert names(page)[0] == "5-15-1-relu"


def test_roof(open_page: Open) -> None:
    page = open_page()
    page.locator("input[value=roof]").check()
    page.wait_for_selector("#chart svg text:text-is('50%')")
    assert {"50%", "33%", "15%", "55%"} <= set(drawn(page)), "fastops, and its peers"


def test_address_keeps_the_choice(open_page: Open) -> None:
    page = open_page("#suite=tiny&network=17-64-64-6-tanh&rows=1&mode=inference&peers=eager&show=roof&order=losses")
    assert names(page) == ["17-64-64-6-tanh"]
    assert page.locator("input[value=roof]").is_checked()
    again = open_page(page.url[page.url.index("#") :])
    assert again.inner_text("main") == page.inner_text("main")
    again.evaluate("location.hash = '#suite=tiny&rows=64&mode='")
    again.wait_for_function("document.querySelectorAll('#table tbody tr').length === 4")


@pytest.mark.parametrize("address", ["#suite=none&rows=x&mode=%F0&peers=,&show=2", "#&&=%", "#cpu=__proto__"])
def test_address_may_be_anything(open_page: Open, address: str) -> None:
    assert names(open_page(address))


def test_keyboard_reaches_everything(open_page: Open) -> None:
    """By Tab, in the order of the page, each with a name and a visible focus; arrows change what is chosen."""
    page = open_page()
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        place = page.evaluate(
            """() => {
              const { id, name, className, labels } = document.activeElement;
              const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
              const label = labels?.[0]?.textContent.trim() ?? "";
              return { id: id || name || className, label, outline: `${outlineStyle} ${outlineWidth}` };
            }"""
        )
        if not place["id"]:
            break
        assert place["outline"] == "solid 3px", place
        assert place["label"] or place["id"] in ("scroll", "download"), place
        reached.append(place["id"])
    selects = ["cpu", "suite", "network", "rows", "dtype", "mode", "order"]
    assert reached == [*selects, "peer", "peer", "show", "scroll", "download"]
    page.focus("#mode")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#mode") == "inference"
    page.focus("input[name=peer] >> nth=1")
    page.keyboard.press("Space")
    assert "peers=eager" in page.url
    assert page.evaluate("document.activeElement.value") == "compile", "what was pressed keeps the focus"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_overflows(open_page: Open, width: int, scheme: str) -> None:
    page = open_page("#mode=", width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    chart = page.locator("#chart svg").bounding_box()
    assert chart["x"] >= 0 and chart["x"] + chart["width"] <= width
    for text in page.locator("#chart svg text").all():
        if box := text.bounding_box():
            assert box["x"] + box["width"] <= width, text.text_content()


def test_link_to_the_documentation(open_page: Open, site: Path) -> None:
    """Where the page is a part of it; the explorer by itself has none."""
    page = open_page()
    assert page.locator("#documentation").is_hidden()
    build_explorer.build(site / "linked", [site / "made-up.csv"], "../benchmarks.html")
    page.goto((site / "linked" / "index.html").as_uri())
    assert page.get_attribute("a:visible >> nth=0", "href") == "../benchmarks.html"


def test_dark_mode(open_page: Open) -> None:
    """Text on the background has a contrast of 5 and more in both, and the chart follows."""
    fills = []
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        drawn(page)
        colors = page.evaluate(
            """() => ["body", "#machine", "#table td.slower"].map((place) =>
              getComputedStyle(document.querySelector(place)).color).concat(getComputedStyle(document.body).backgroundColor)"""
        )
        *texts, background = [[int(part) for part in re.findall(r"\d+", color)[:3]] for color in colors]
        assert min(contrast(text, background) for text in texts) >= 5, colors
        fills.append(page.get_attribute("#chart svg .mark-text text >> nth=0", "fill"))
    assert fills[0] != fills[1]


def contrast(one: list[int], other: list[int]) -> float:
    """As WCAG defines it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: list[int]) -> float:
    parts = [part / 255 for part in color]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
