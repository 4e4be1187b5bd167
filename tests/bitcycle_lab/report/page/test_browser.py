"""The page in a real browser without a network: quiet, harmless, usable."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from bitcycle_lab.report.page import write_page
from bitcycle_lab.study.results import read_study
from bitcycle_lab.study.study_file import find_study
from tests.bitcycle_lab.report.made_up import result_of, write_run

pytestmark = pytest.mark.slow
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


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

    def open_file(path, width=1280, height=900, **options):
        size = {"width": width, "height": height}
        context = browser.new_context(offline=True, viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
        page.on("request", lambda request: page.complaints.append(request.url))
        page.goto(path.as_uri())
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


def test_the_demos_page_is_small_and_needs_no_network(visit, demo_file):
    assert demo_file.stat().st_size < 1_000_000
    page = visit(demo_file)
    assert page.complaints == []
    assert page.locator(".chart svg").count() > 5
    assert "accuracy" in page.locator(".chart svg").first.text_content()


def test_hostile_names_stay_text(visit, page_file):
    page = visit(page_file)
    page.wait_for_timeout(300)
    assert page.complaints == []
    assert page.title() != "hurt"
    assert page.locator("img").count() == 0
    assert "<script>" in page.locator(".legend li").nth(1).inner_text()
    assert "</script><img src=x" in page.locator(".chart svg").first.text_content()


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


def test_the_theme_follows_the_system_and_the_button_changes_page_and_figures(visit, page_file):
    page = visit(page_file, color_scheme="dark")
    looks = """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('.chart svg')).filter]"""
    assert page.evaluate(looks) == ["rgb(18, 21, 27)", "invert(0.88) hue-rotate(180deg)"]
    page.locator("#theme").click()
    assert page.evaluate(looks) == ["rgb(246, 247, 249)", "none"]


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_has_no_sideways_scrolling(visit, page_file, width):
    page = visit(page_file, width=width, height=844, is_mobile=True, has_touch=True)
    for details in page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.complaints == []
