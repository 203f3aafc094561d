"""`kfl watch` in a real browser: a page that fills itself, outlives a kill of the run, and ends on request."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NEWS = "return document.getElementById('news').textContent"
POINTS = "(document.querySelector('#accuracy-plot')?.data?.find((trace) => trace.name === 'kfl').x.length ?? 0)"
# With a pause after each round, so that there is something to watch and something to kill; resumed if it is begun.
RUN = """
import sys, time
from pathlib import Path
import kfl
from tests.reference.runs import SMALL, data
pause_s = float(sys.argv[2])
kfl.run(SMALL, Path(sys.argv[1]), dataset=data(), keep_models=False, on_round=lambda log: time.sleep(pause_s))
"""
ROOT = Path(__file__).parents[2]


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


@pytest.fixture
def watched(tmp_path):
    """The folder that is watched, where it is shown, and the process that shows it."""
    folder = tmp_path / "run"
    start = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from kfl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with child("-c", start, "report", str(folder), "--live", "--port", "0") as server:
        url = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", server.stdout.readline())[0]
        yield folder, url, server
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)


def test_a_page_lives_through_the_whole_life_of_a_run(browser, complete, watched):
    folder, url, server = watched
    browser.open(url)
    browser.wait(f"{NEWS} === 'Waiting for the run to begin.'")
    assert "Nothing has been written" in browser.run("return document.body.textContent")

    with child("-c", RUN, str(folder), "0.4") as run:
        first = browser.wait(f"return {POINTS}")
        browser.find("#accuracy-view-1 + span").click()
        browser.find("#energy-table summary").click()
        browser.wait(f"return {POINTS} > {first + 3}")
        assert re.match(r"Live: round \d+ of 40\.", browser.run(NEWS))
        os.kill(run.pid, signal.SIGKILL)
    assert browser.run("return document.getElementById('accuracy-view-1').checked"), "what was chosen stays"
    assert browser.run("return document.getElementById('energy-table').open")
    assert browser.run("return document.getElementById('accuracy-plot')._fullLayout.xaxis.title.text") != "round"
    seen = browser.run(f"return {POINTS}")
    assert 0 < seen < 40

    with child("-c", RUN, str(folder), "0.01") as run:
        browser.wait(f"{NEWS} === 'Finished.'")
        assert run.wait(timeout=60) == 0
    browser.wait(f"return {POINTS} === 40")
    assert "finished, 40 rounds" in browser.run("return document.querySelector('.badge').textContent")
    names = complete(browser)
    assert {"accuracy", "knowledge", "cell"} <= set(names)
    assert browser.run("return document.getElementById('accuracy-view-1').checked")
    assert browser.messages() == []
    assert all(address.startswith((url, "data:", "blob:")) for address in browser.asked())

    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=20) == 0
    browser.wait(f"{NEWS}.startsWith('The server has stopped')")
    assert browser.run(f"return {POINTS}") == 40, "the last page stays readable"


def test_on_a_phone_in_the_dark(browser, complete, watched):
    folder, url, _ = watched
    browser.open(url, 390, theme="dark")
    with child("-c", RUN, str(folder), "0") as run:
        assert run.wait(timeout=60) == 0
    browser.wait(f"{NEWS} === 'Finished.'")
    complete(browser)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    (folder / "summary.json").unlink()  # as if it had been killed ten minutes ago
    os.utime(folder / "rounds.jsonl", (time.time() - 600, time.time() - 600))
    browser.wait(f"{NEWS}.includes('kfl resume')")
    assert browser.run("return document.documentElement.scrollWidth") == 390, "a long message is no wider than the page"
    assert browser.messages() == []
