"""The playground in a real Chromium: what the page says is what the library says, on a laptop and on a phone."""

import re
import threading
import time
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest

from kfl.report import playground_server
from kfl.report.controls import OPENING, Settings, start
from kfl.report.text import percent, quantity
from kfl.scheduling import schedule
from kfl.wireless import Cell

WIDTHS = {"desktop": (1366, 900), "phone": (390, 844)}
PLOTS = ("schedule", "participants", "cell", "shares", "energy", "pace", "gap")


@pytest.fixture(scope="module")
def url():
    with playground_server(0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


class Page:
    """The playground in a browser, and the few things a person does with it."""

    def __init__(self, browser, url, settings=None, size=WIDTHS["desktop"]):
        self.browser = browser
        self.js = browser.run
        browser.open(url + ("" if settings is None else "?" + settings.query()), *size)
        self.settle()

    def settle(self):
        """Until the last change is played and drawn."""
        self.browser.wait("return document.body.dataset.settled === 'yes' && document.body.dataset.ready === 'yes'")

    def slide(self, name, place):
        """Move a slider, as a finger does."""
        self.js(
            "const slider = document.getElementById(arguments[0] + '-slider'); slider.value = arguments[1];"
            "slider.dispatchEvent(new Event('input', { bubbles: true }))",
            name,
            place,
        )
        self.settle()

    def type(self, name, text):
        self.js(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', { bubbles: true }))",
            name,
            text,
        )
        self.settle()

    def choose(self, name, value):
        self.type(name, value)

    @property
    def settings(self):
        """What the address says."""
        query = dict(parse_qsl(urlsplit(self.browser.driver.current_url).query))
        return Settings.from_query(query) if query else start(OPENING)

    @property
    def cards(self):
        return self.js(
            "return Object.fromEntries(Array.from(document.querySelectorAll('.card'), (card) =>"
            " [card.querySelector('dt').textContent, card.querySelector('strong').textContent]))"
        )

    def trace(self, plot, name):
        """A trace of a drawn chart: x and y."""
        return self.js(
            "const found = document.getElementById(arguments[0] + '-plot').data.find((t) => t.name === arguments[1]);"
            "return found ? { x: Array.from(found.x), y: Array.from(found.y) } : null",
            plot,
            name,
        )

    def joules_per_unit(self, plot):
        """What one unit of a chart's vertical axis is, by its title."""
        title = self.js("return document.getElementById(arguments[0] + '-plot')._fullLayout.yaxis.title.text", plot)
        return {"kJ": 1e3, "J": 1.0, "mJ": 1e-3, "µJ": 1e-6}[title.rpartition(", ")[2]]

    def drawn(self):
        """Charts with something drawn in them."""
        return [
            name
            for name in PLOTS
            if self.js(
                "const svg = document.querySelector(`#${arguments[0]}-plot svg.main-svg`);"
                "return svg !== null && svg.getBoundingClientRect().width > 100",
                name,
            )
        ]

    def as_the_library_says(self, state):
        """Compare everything the page shows with the library's own answer for these settings."""
        assert self.settings == state
        problem = Cell.build(state.radio, state.devices, state.seed).problem(
            state.rounds,
            flops=state.flops,
            payload_bits=state.payload_bits,
            samples=state.samples,
            hard_budget=state.hard_budget,
        )
        result = schedule(problem, state.make_scheduler())
        cards, counts = self.cards, [len(one.devices) for one in result.rounds]
        spent = float(result.compute_energy_j.sum() + result.upload_energy_j.sum())
        assert cards["Scheduled"] == f"{sum(counts) / state.rounds:.1f} of {state.devices}"
        assert cards["Energy so far"] == quantity(spent, "J")
        assert cards["Band in use"] == percent(sum(float(one.share.sum()) for one in result.rounds) / state.rounds)
        mean = self.trace("pace", "mean device")
        assert mean["x"] == list(range(1, state.rounds + 1))
        mean_j = mean["y"][-1] * self.joules_per_unit("pace")
        assert mean_j * state.devices == pytest.approx(spent, rel=1e-4)
        assert self.trace("participants", "scheduled")["y"] == counts
        if sum(counts):
            shares = [share for one in result.rounds for share in one.share]
            drawn = self.js("return Array.from(document.getElementById('shares-plot').data[0].y)")
            assert drawn == [pytest.approx(share, rel=1e-3) for share in shares]
            marked = self.js("return document.getElementById('cell-plot').data[1].x.length")
            assert marked == counts[-1], "the slider of the map stands at the last round"
        return result


@pytest.fixture(params=list(WIDTHS))
def size(request):
    return WIDTHS[request.param]


def test_it_opens_and_every_chart_is_drawn(browser, url, size):
    page = Page(browser, url, size=size)
    assert page.drawn() == list(PLOTS)
    counts = [len(one.devices) for one in page.as_the_library_says(start(OPENING)).rounds]
    assert 0 < counts[0] < start(OPENING).devices, "something is decided in the round that is shown first"
    assert sum(0 < count < start(OPENING).devices for count in counts) > 0.9 * len(counts), "and in nearly all others"
    assert "nothing is trained here" in page.js("return document.querySelector('.cards').textContent")
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    assert page.js("return Array.from(document.querySelectorAll('.plot')).every((p) => p.ariaLabel.length > 20)")
    assert all(address.startswith((url, "data:", "blob:", "about:")) for address in browser.asked())
    assert browser.messages() == []


def test_moving_a_control_gives_what_the_library_says(browser, url, size):
    page = Page(browser, url, replace(start("small-cell"), devices=30, rounds=12), size)
    before, v = page.as_the_library_says(page.settings), page.settings.relative_v
    page.slide("relative_v", 300)
    moved = page.settings
    assert moved.relative_v < v
    after = page.as_the_library_says(moved)
    assert after.participation_count.sum() < before.participation_count.sum()  # a smaller V: fewer devices
    page.type("budget_j_per_round", "10")
    assert page.settings == replace(moved, budget_j_per_round=0.01)
    page.type("bandwidth_hz", "2000")
    page.slide("radius_m", 700)
    page.type("payload_bits", "900")
    page.type("max_power_dbm", "20")
    page.type("power_coefficient", "2e-28")
    assert page.settings.bandwidth_hz == 2e6
    page.as_the_library_says(page.settings)
    assert browser.messages() == []


def test_another_scheduler_another_seed_another_cell(browser, url):
    page = Page(browser, url, Settings(devices=25, rounds=10))
    seen = set()
    for name in ("dual", "round-robin", "myopic", "uniform", "all"):
        page.choose("scheduler", name)
        assert page.settings.scheduler == name
        seen.add(tuple(page.as_the_library_says(page.settings).participation_count.tolist()))
        hidden = page.js("return document.getElementById('of-count').hidden")
        assert hidden == (name not in ("round-robin", "uniform"))
    assert len(seen) >= 4
    page.js("document.getElementById('reseed').click()")
    page.settle()
    assert page.settings.seed == 1
    page.choose("start", "nb-iot")
    assert page.settings == start("nb-iot")
    page.as_the_library_says(start("nb-iot"))
    page.slide("circuit_power_w", 0)
    page.slide("tail_energy_j", 400)
    page.slide("min_cpu_hz", 700)
    assert page.settings.circuit_power_w == 0 < page.settings.tail_energy_j
    page.as_the_library_says(page.settings)
    page.js("document.getElementById('restart').click()")
    page.settle()
    assert page.settings == start("nb-iot")
    assert browser.messages() == []


def test_a_bad_value_is_a_sentence_and_the_last_good_results_stay(browser, url, size):
    page = Page(browser, url, Settings(devices=10, rounds=5), size)
    before = page.cards
    page.type("relative_v", "a lot")
    problem = browser.find("#problem")
    assert problem.text == "Relative V is 'a lot', but must be a number."
    assert page.js("return document.getElementById('relative_v').getAttribute('aria-invalid')") == "true"
    page.type("relative_v", "")
    assert problem.text.startswith("Relative V is ")
    page.type("relative_v", "5e6")
    assert problem.text == "Relative V is 5000000, but must be from 0.001 to 1e+06."
    assert page.cards == before
    assert page.settings.relative_v == 1.0
    page.type("relative_v", "2")
    assert not problem.is_displayed()
    assert page.settings.relative_v == 2.0
    assert browser.messages() == []


def test_switches_sliders_and_the_link(browser, url):
    page = Page(browser, url, Settings(devices=10, rounds=5, relative_v=100.0))
    drawn = "Array.from(document.getElementById('shares-plot').data[0].y)"
    page.js("document.getElementById('shares-view-1').click()")
    power_w = browser.wait(
        f"return document.getElementById('shares-plot').dataset.drawn === 'Power' && {drawn}",
    )
    label = "return document.querySelector('#cell output').textContent"
    page.js(
        "const slider = document.getElementById('cell-slider'); slider.value = 2;"
        "slider.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    browser.wait(f"{label} === 'round 3'")
    page.type("bandwidth_hz", "4000")  # what the reader chose stays
    assert page.js("return document.getElementById('shares-view-1').checked")
    assert page.js(label) == "round 3" and page.js(f"return {drawn}") != power_w
    link = browser.find("#link").get_attribute("href")
    assert Settings.from_query(dict(parse_qsl(urlsplit(link).query))) == page.settings
    assert "devices=10" in browser.find("#python").get_attribute("textContent")
    commands = browser.find("#commands").get_attribute("textContent")
    assert re.search(r"kfl schedule cell\.json --scheduler lyapunov", commands)
    assert browser.messages() == []


def test_by_keyboard(browser, url):
    """Tab reaches the controls, arrow keys move them, and the results follow."""
    from selenium.webdriver.common.keys import Keys

    page = Page(browser, url, Settings(devices=10, rounds=5))
    reached = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.js("return document.activeElement.id"))
        if reached[-1] == "relative_v-slider":
            break
    assert "scheduler" in reached
    assert reached[-1] == "relative_v-slider"
    for _ in range(5):
        browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    time.sleep(0.2)
    page.settle()
    assert 1.0 < page.settings.relative_v < 1.2
    assert page.js("return document.activeElement.id") == "relative_v-slider"  # new results do not take the focus
    page.as_the_library_says(page.settings)


def test_dark_and_light(browser, url):
    page = Page(browser, url, Settings(devices=10, rounds=5))
    colors = {}
    for _ in range(3):
        name = page.js("document.getElementById('theme').click(); return document.documentElement.dataset.theme")
        page.settle()
        colors[name] = (
            page.js("return getComputedStyle(document.body).backgroundColor"),
            page.js("return document.getElementById('participants-plot').data[0].line.color"),
        )
    assert colors["light"] != colors["dark"]
    assert page.drawn() == list(PLOTS)
    assert browser.messages() == []


TICKS = """
return Array.from(document.querySelectorAll('.plot')).flatMap((plot) => ['xaxis', 'yaxis'].flatMap((name) => {
  const axis = plot._fullLayout[name];
  if (!/%/.test(axis.tickformat || '')) return [];
  const place = (tick) => (axis.type === 'log' ? 10 ** tick.x : tick.x);
  return axis._vals.filter((tick) => tick.text).map((tick) => [plot.id, place(tick), tick.text]);
}));
"""


@pytest.mark.parametrize("devices", [3, 9, 50])
def test_ticks_in_per_cent_say_where_they_stand(browser, url, devices):
    page = Page(browser, url, replace(start("small-cell"), devices=devices, rounds=20))
    ticks = page.js(TICKS)
    assert len({plot for plot, _, _ in ticks}) >= 2
    for plot, value, said in ticks:
        assert float(said.rstrip("%").replace("\N{MINUS SIGN}", "-")) == pytest.approx(
            100 * value, rel=1e-6, abs=1e-6
        ), plot
