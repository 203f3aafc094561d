"""A real Chromium for the tests in this folder: one per process, a new page for each test.

Without Chromium and its driver the tests are skipped, and say so loudly; `make browser` installs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
)
PATIENCE_S = 120.0


def _program(*names: str) -> str | None:
    """Where a program is; `KFL_CHROMIUM` and `KFL_CHROMEDRIVER` name others."""
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """A page in Chromium, with what it said and whom it asked."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._messages: list[str] = []
        self._asked: list[str] = []

    def open(self, url: str, width: int = 1280, height: int = 900, theme: str = "light") -> Browser:
        """Show a page at a width and in a theme; what was said before is forgotten."""
        self.driver.get("about:blank")
        self._collect()
        self._messages, self._asked = [], []
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get(url)
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of JavaScript such as `return document.title`."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        """The element of a CSS selector, brought into view below the bar that covers the top."""
        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        return element

    def wait(self, script: str, *arguments: Any, patience_s: float = PATIENCE_S) -> Any:
        """Wait until JavaScript returns something true, and return it."""
        end = time.monotonic() + patience_s
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"still not so after {patience_s} s: {script}; said: {self.messages()}"
            time.sleep(0.05)
        return found

    def messages(self) -> list[str]:
        """Everything the console said since the page was opened: errors and warnings, of the browser too."""
        self._collect()
        return self._messages

    def asked(self) -> list[str]:
        """Addresses the page asked for since it was opened, its own first."""
        self._collect()
        return self._asked

    def _collect(self) -> None:
        levels = ("SEVERE", "WARNING")
        self._messages += [e["message"] for e in self.driver.get_log("browser") if e["level"] in levels]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                params = event["params"]
                self._asked.append(params.get("url") or params["request"]["url"])


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The browser of this test process."""
    binary = _program(os.environ.get("KFL_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    driver = _program(os.environ.get("KFL_CHROMEDRIVER", ""), "chromedriver")
    if binary is None or driver is None:
        missing = "chromium" if binary is None else "chromedriver"
        pytest.skip(f"NO BROWSER: {missing} was not found, so NOTHING of the pages was tested; run: make browser")
    webdriver = pytest.importorskip("selenium.webdriver", reason="NO BROWSER: selenium is missing; run: make setup")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver, log_output=subprocess.DEVNULL)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    with contextlib.suppress(Exception):
        started.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """A browser to open pages with."""
    page = Browser(chromium)
    yield page
    chromium.get("about:blank")


@pytest.fixture
def complete() -> Callable[[Browser], list[str]]:
    """Wait until all charts of a page are drawn; their names. A page marks its body when they are."""

    def wait(page: Browser) -> list[str]:
        page.wait("return document.body.dataset.ready === 'yes'")
        names: list[str] = page.run(
            "return Array.from(document.querySelectorAll('.plot'), p => p.closest('[hidden]') ? '' : p.dataset.figure)"
        )
        return [name for name in names if name]

    return wait
