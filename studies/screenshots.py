"""The pictures of pages in the docs, docs/img/*.png, taken anew with Chromium.

    python -m studies.screenshots            # makes its own runs: some minutes on two cores
    python -m studies.screenshots --runs DIR # keeps them, or uses those that are there

Needs Chromium and its driver (`make browser`) and Selenium (`make setup`).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent.parent / "docs" / "img"
MOST_BYTES = 300_000
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
CELL = ["--radio", "paper-mnist", "--scheduler", "lyapunov"]
"""Its budgets pay for about half of these devices in a round, so that there is something to choose."""
SETTING = ["--dataset", "mnist-5k", "--devices", "12", "--widths", "32", *CELL]
RUN = [*SETTING, "--rounds", "40", "--seed", "5", "--faults.late", "0.05"]
COMPARE = [*SETTING, "--rounds", "20", "--algorithms", "kfl,fedavg,fixed-knowledge,local", "--seeds", "5..7"]


@dataclass(frozen=True)
class Shot:
    """One picture: of which page, how large, in which theme, and from where on."""

    name: str
    page: str
    width: int = 1280
    height: int = 900
    theme: str = "light"
    at: str = ""
    """Selector of what is at its top; the top of the page by default."""


SHOTS = (
    Shot("report", "one"),
    Shot("report-schedule", "one", height=520, at="#schedule"),
    Shot("report-dark", "one", height=1150, theme="dark", at="#radio"),
    Shot("report-phone", "one", 390, 844),
    Shot("report-compare", "several", height=1000),
    Shot("playground", "playground", 1400, 1000),
    Shot("playground-phone", "playground", 390, 844),
)


def make_runs(folder: Path) -> dict[str, str]:
    """The addresses of a report and of a comparison; runs that are finished are not repeated."""
    from kfl.cli.main import main
    from kfl.report import build_report

    if not (folder / "one" / "summary.json").exists() and main(["run", *RUN, "--out", str(folder / "one")]):
        raise SystemExit("the run for the pictures did not finish")
    if main(["compare", *COMPARE, "--out", str(folder / "several")]):
        raise SystemExit("the comparison for the pictures did not finish")
    pages = {name: build_report([folder / name], folder / f"{name}.html") for name in ("one", "several")}
    return {name: page.resolve().as_uri() for name, page in pages.items()}


@contextlib.contextmanager
def playground() -> Iterator[str]:
    """The address of a playground."""
    from kfl.report import playground_server

    with playground_server(0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser; `KFL_CHROMIUM` and `KFL_CHROMEDRIVER` name others than those on the path."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("KFL_CHROMIUM") or shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = os.environ.get("KFL_CHROMEDRIVER") or shutil.which("chromedriver")
        service = webdriver.ChromeService(executable_path=driver, log_output=subprocess.DEVNULL)
        browser = webdriver.Chrome(options=options, service=service)
        try:
            yield browser
        finally:
            browser.quit()


def take(browser: Any, shot: Shot, address: str) -> bytes:
    """The picture as PNG."""
    size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": shot.width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": shot.theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(address)
    done = (
        "const d = document.body.dataset; return d.ready === 'yes' && (!document.forms.controls || d.settled === 'yes')"
    )
    until = time.monotonic() + 120
    while not browser.execute_script(done):
        if time.monotonic() > until:
            raise TimeoutError(f"{address} was not drawn within two minutes")
        time.sleep(0.1)
    if shot.at:
        browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", shot.at)
    time.sleep(0.5)
    found = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return _small(base64.b64decode(found["data"]))


def _small(png: bytes) -> bytes:
    """The same picture, packed as tightly as PNG allows."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(buffer, "png", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Make the runs, take every picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures (default: docs/img)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        runs = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pages = make_runs(runs)
        pages["playground"] = stack.enter_context(playground())
        browser = stack.enter_context(chromium())
        options.out.mkdir(parents=True, exist_ok=True)
        for shot in SHOTS:
            png = take(browser, shot, pages[shot.page])
            if len(png) > MOST_BYTES:
                raise SystemExit(f"{shot.name}.png has {len(png):,} bytes, more than {MOST_BYTES:,}")
            (options.out / f"{shot.name}.png").write_bytes(png)
            print(f"{options.out / shot.name}.png: {len(png):,} bytes")


if __name__ == "__main__":
    main()
