"""The site in a real browser, as a file and from a server, without a network."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.bitcycle_lab.report.page.test_browser import FLAGS

pytestmark = pytest.mark.slow


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module", params=["file", "http"])
def home(request, site):
    """The address of the home page."""
    if request.param == "file":
        yield (site / "index.html").as_uri()
        return
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("the site is tested in chromium, which is missing: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, home):
    """Opens a page; what it said, or asked others for, is in `page.complaints`."""
    contexts = []

    def open_page(name="index.html", width=1280, height=900, **options):
        size = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=size, **options))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on(
            "requestfailed",  # a click may cancel the icon of the page that is left
            lambda request: (
                request.url.endswith("favicon.svg") or page.complaints.append(request.url)
            ),
        )
        base = home.removesuffix("index.html")
        page.on(
            "request",
            lambda request: (
                request.url.startswith((base, "about:", "data:", "blob:"))
                or page.complaints.append(request.url)
            ),
        )
        page.goto(base + name)
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_the_home_page_opens_and_leads_on(visit):
    page = visit()
    expect(page.locator("h1")).to_contain_text("bitcycle")
    page.get_by_role("link", name="Getting started").first.click()
    expect(page.locator("h1")).to_contain_text("Getting started")
    assert page.complaints == []


def test_search_finds_a_class_and_opens_its_entry(visit):
    page = visit()
    page.locator(".md-search__input").press_sequentially("PrecisionScheduler")
    entry = page.locator(".md-search-result__link[href*='#bitcycle.PrecisionScheduler']").first
    expect(entry).to_be_visible()
    entry.click()
    expect(page.locator("[id='bitcycle.PrecisionScheduler']")).to_be_in_viewport(timeout=20_000)
    assert page.complaints == []


@pytest.mark.parametrize(
    "name", ["schedules", "formats", "cost", "gpu", "cli", "project/results/speed"]
)
def test_a_page_is_no_wider_than_a_phone(visit, name):
    """Wide tables, pictures and code scroll in boxes of their own."""
    page = visit(f"{name}.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
