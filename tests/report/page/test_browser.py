"""The page in a real browser without a network: drawn, quiet, harmless, usable."""

import re
import shutil
import time

import pytest
from playwright.sync_api import expect, sync_playwright

from bitcycle.report.page import write_page
from bitcycle.study.results import read_study
from bitcycle.study.study_file import find_study
from tests.report.made_up import figures_of, result_of, write_run

pytestmark = pytest.mark.slow
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
DRAWN = """() => [...document.querySelectorAll('.chart')]
    .filter((place) => !place.closest('[hidden]'))
    .every((place) => place.querySelector('.main-svg'))"""


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("the page is tested in chromium, which is missing: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a file; what the page complained about or asked for is in `page.complaints`."""
    contexts = []

    def open_file(path, width=1280, height=900, before="", until=DRAWN, **options):
        size = {"width": width, "height": height}
        context = browser.new_context(offline=True, viewport=size, **options)
        contexts.append(context)
        context.add_init_script(before)
        page = context.new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
        page.on("request", lambda request: page.complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(until)
        assert page.complaints.pop(0) == path.as_uri()
        return page

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory):
    """The demo's page, priced from its real configurations; only the training is made up."""
    output = tmp_path_factory.mktemp("demo") / "runs"
    demo = find_study("demo")
    for number, run in enumerate(demo.runs(str(output))):
        write_run(run, result_of(run.config, 97.0 + 0.1 * (number % 7), 10**11 * (1 + number % 4)))
    return write_page(read_study(demo, output))


def curve_of(page):
    """The chart of the learning curves."""
    return page.locator(".compared .choice .part:not([hidden]) .chart")


def lines_of(chart):
    return chart.locator(".scatterlayer .trace path.js-line")


def test_the_demos_page_is_small_and_loads_in_seconds_without_a_network(visit, demo_file):
    assert demo_file.stat().st_size < 2_000_000
    began = time.monotonic()
    page = visit(demo_file)
    assert time.monotonic() - began < 20
    assert page.complaints == []
    assert page.locator(".chart .main-svg").count() > 0
    assert not page.locator("#no-charts").is_visible()


def test_an_old_browser_is_told_why_there_are_no_charts_and_keeps_the_rest(visit, page_file):
    old, told = "delete window.DecompressionStream", "() => document.querySelector('[role=alert]')"
    page = visit(page_file, before=old, until=f"{told}.checkVisibility()")
    assert page.complaints == []
    assert "Firefox 113" in page.locator("#no-charts").inner_text()
    assert page.locator(".main-svg").count() == 0
    head = page.locator("table.sortable thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#theme").click()
    assert page.complaints == []


def test_every_figure_is_one_that_plotly_knows(page, demo_file):
    from plotly.graph_objects import Figure

    def named(value):
        if isinstance(value, dict):
            return {key: named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [named(inner) for inner in value]
        return re.sub(r"^var\(.*", "#123456", value) if isinstance(value, str) else value

    figures = [*figures_of(page), *figures_of(demo_file.read_text(encoding="utf-8"))]
    assert len(figures) > 15
    for figure in figures:
        Figure(named(figure))  # an unknown property or value raises


def test_hostile_names_stay_text(visit, page_file):
    page = visit(page_file)
    page.wait_for_timeout(300)
    assert page.complaints == []
    assert page.title() != "hurt"
    assert page.locator("img").count() == 0
    assert "<script>" in page.locator(".legend button").nth(1).inner_text()
    page.locator(".chart").first.scroll_into_view_if_needed()
    means = page.locator(".chart").first.locator("path.point")
    for number in range(means.count()):
        means.nth(number).hover(force=True)
        page.wait_for_timeout(100)
        shown = page.locator(".hovertext").first.text_content()
        if "document.title" in shown:
            break
    assert "</script><img src=x" in shown or "<script>document.title=" in shown
    assert page.title() != "hurt"
    assert page.complaints == []


def test_every_point_and_bar_says_what_it_is(visit, demo_file):
    page = visit(demo_file)
    marks = {".chart": "path.point", "#layers .chart": ".barlayer path"}
    for place, mark in marks.items():
        chart = page.locator(place).first
        chart.scroll_into_view_if_needed()
        chart.locator(mark).first.hover(force=True)
        page.wait_for_selector(".hovertext")
        assert re.match(r"[a-z]\w+", page.locator(".hovertext").first.text_content())


def test_a_click_on_the_legend_hides_a_method_and_another_shows_it_again(visit, page_file):
    page = visit(page_file)
    chart, button = curve_of(page), page.locator(".legend button").first
    before, picture = lines_of(chart).count(), chart.screenshot()
    button.click()
    expect(lines_of(chart)).to_have_count(before - 4)  # two runs, their mean, the bits
    assert button.get_attribute("aria-pressed") == "false"
    assert chart.screenshot() != picture
    button.focus()
    page.keyboard.press("Enter")
    expect(lines_of(chart)).to_have_count(before)
    assert button.get_attribute("aria-pressed") == "true"


def test_a_double_click_leaves_one_method_and_another_brings_all_back(visit, page_file):
    page = visit(page_file)
    buttons = page.locator(".legend button")
    states = lambda: [b.get_attribute("aria-pressed") for b in buttons.all()]  # noqa: E731
    buttons.nth(1).dblclick()
    assert states() == ["false", "true", "false", "false"]
    buttons.nth(1).dblclick()
    assert states() == ["true"] * 4


def test_the_table_sorts_by_click_and_by_key_with_empty_cells_last(visit, page_file):
    page = visit(page_file)
    head = page.locator("table.sortable thead th").nth(1)
    names = lambda: page.locator("table.sortable tbody th").all_inner_texts()  # noqa: E731
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [name.strip()[:3] for name in names()] == ["low", "sta", "CPT", "lat"]
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [name.strip()[:3] for name in names()] == ["CPT", "sta", "low", "lat"]


def test_the_theme_follows_the_system_and_the_button_changes_page_and_charts(visit, page_file):
    page = visit(page_file, color_scheme="dark")
    ink = "() => document.querySelector('.chart')._fullLayout.font.color"
    paper = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ink), page.evaluate(paper)
    page.locator("#theme").click()
    page.wait_for_function(f"(before) => ({ink})() !== before", arg=dark[0])
    light = page.evaluate(ink), page.evaluate(paper)
    assert dark == ("#e8ebf1", "rgb(18, 21, 27)")
    assert light == ("#1c2330", "rgb(246, 247, 249)")


def test_another_curve_can_be_chosen(visit, page_file):
    page = visit(page_file)
    page.locator(".compared .choice select").select_option(label="training loss")
    page.wait_for_function(DRAWN)
    expect(lines_of(curve_of(page))).not_to_have_count(0)
    assert "training loss" in curve_of(page).locator(".ytitle").text_content()


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_has_no_sideways_scrolling(visit, page_file, width):
    page = visit(page_file, width=width, height=844, is_mobile=True, has_touch=True)
    for details in page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.complaints == []
