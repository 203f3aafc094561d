"""The page of `kfl report` in a real browser: drawn, without requests, and its controls work."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from selenium.webdriver.common.keys import Keys

import kfl
from kfl.experiment import common_settings
from kfl.experiment.faults import Faults
from kfl.report import build_report
from kfl.scheduling import Lyapunov
from tests.reference.runs import SMALL, data, made_up_run

EXPERIMENT = replace(
    SMALL, rounds=15, scheduler=Lyapunov(v=0.01), faults=Faults(drop_before=0.1, late=0.1, corrupt=0.2)
)
DRAWN = """
const plot = document.getElementById(arguments[0] + '-plot');
const box = plot.getBoundingClientRect();
const marks = plot.querySelectorAll('.scatterlayer .trace, .barlayer .trace, .heatmaplayer .hm').length;
return {width: box.width, height: box.height, marks, traces: plot.data.length, shown: plot._fullLayout.width};
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("pages")
    kfl.run(EXPERIMENT, base / "kfl", dataset=data())
    alone = replace(EXPERIMENT, algorithm=common_settings(EXPERIMENT.algorithm, kfl.algorithms.Local))
    kfl.run(alone, base / "local", dataset=data(), keep_models=False)
    shutil.copytree(base / "local", base / "kfl" / "local-only")
    return base


@pytest.fixture(scope="module")
def one(folders):
    return build_report([folders / "kfl"], folders / "one.html").as_uri()


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Two algorithms with three seeds each."""
    base = tmp_path_factory.mktemp("seeds")
    for seed in (5, 6, 7):
        for name in ("kfl", "local"):
            algorithm = common_settings(SMALL.algorithm, kfl.algorithms.ALGORITHMS[name])
            run = replace(SMALL, rounds=12, seed=seed, algorithm=algorithm, radio=kfl.wireless.PRESETS["paper-mnist"])
            kfl.run(run, base / f"{name}-seed{seed}-{run.digest()}", dataset=data(), keep_models=False)
    return build_report([base], base / "page.html").as_uri()


@pytest.fixture(scope="module")
def two(folders):
    return build_report([folders / "kfl", folders / "local"], folders / "two.html").as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everything_is_drawn_and_nothing_is_said_or_asked(browser, complete, one, width, theme):
    browser.open(one, width, theme=theme)
    names = complete(browser)
    assert len(names) == 12
    for name in names:
        found = browser.run(DRAWN, name)
        assert found["marks"] >= 1 and found["traces"] >= 1, (name, found)
        assert found["width"] > 0.75 * min(width, 480) and found["height"] > 200, (name, found)
        assert abs(found["shown"] - found["width"]) <= 1, f"{name} is drawn at the width of its place"
    assert browser.run("return document.documentElement.scrollWidth") == width, "nothing sticks out sideways"
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, background[4:-1].split(","))) < 200
    assert dark == (theme == "dark")
    ink = browser.run("return document.getElementById('accuracy-plot')._fullLayout.font.color")
    assert ink == ("#e7ebee" if dark else "#1b2227")
    assert browser.messages() == []
    assert [url for url in browser.asked() if not url.startswith(("data:", "blob:"))] == [one]


def test_the_switch_changes_the_axis_with_mouse_and_keyboard(browser, complete, one):
    browser.open(one)
    complete(browser)
    title = "return document.getElementById('accuracy-plot')._fullLayout.xaxis.title.text"
    assert browser.run(title) == "round"
    browser.find("#accuracy-view-1 + span").click()
    browser.wait(f"{title} === 'energy of all devices, mJ'")
    browser.find("#accuracy-view-1").send_keys(Keys.ARROW_RIGHT)
    browser.wait(f"{title} === 'time in the cell, s'")
    browser.find("#energy-view-1 + span").click()
    browser.wait("return document.getElementById('energy-plot').dataset.drawn === 'Joules'")
    browser.find("#schedule-view-1 + span").click()
    order = browser.wait(
        "const t = document.getElementById('schedule-plot'); return t.dataset.drawn === 'By rounds' && t.data[0].y"
    )
    assert sorted(map(int, order)) == list(range(8))
    assert browser.messages() == []


def test_sliders_move_knowledge_and_mark_devices(browser, complete, one, folders):
    browser.open(one)
    complete(browser)
    rounds = [json.loads(line) for line in (folders / "kfl" / "rounds.jsonl").read_text().splitlines()]
    marked = "return document.getElementById('cell-plot').data[1].x.length"
    assert browser.run(marked) == len(rounds[-1]["devices"])
    slider = browser.find("#cell-slider")
    slider.send_keys(Keys.HOME)
    browser.wait(f"{marked} === {len(rounds[0]['devices'])}")
    slider.send_keys(Keys.ARROW_RIGHT)
    browser.wait("return document.querySelector('#cell output').textContent === 'round 2'")
    assert slider.get_attribute("aria-valuetext") == "round 2"

    where = "return document.getElementById('knowledge-plot').data[1].x"
    last = browser.run(where)
    browser.find("#knowledge-slider").send_keys(Keys.HOME)
    browser.wait("return document.querySelector('#knowledge output').textContent === 'round 1'")
    assert browser.wait(f"{where}") != last
    button = browser.find("#knowledge-play")
    button.send_keys(Keys.ENTER)
    browser.wait("return Number(document.getElementById('knowledge-slider').value) >= 3")
    assert button.text == "Stop"
    button.click()
    browser.wait("return document.getElementById('knowledge-play').textContent === 'Play'")
    stopped = browser.run("return document.getElementById('knowledge-slider').value")
    assert (
        browser.run(
            "return new Promise(done => setTimeout(() => done(document.getElementById('knowledge-slider').value), 500))"
        )
        == stopped
    )
    button.click()
    browser.wait("return document.getElementById('knowledge-slider').value === '14'")
    browser.wait("return document.getElementById('knowledge-play').textContent === 'Play'")
    assert browser.run(where) == last
    assert browser.messages() == []


def test_the_theme_can_be_chosen_and_is_remembered(browser, complete, one):
    browser.open(one, theme="dark")
    complete(browser)
    button = browser.find("#theme")
    button.click()
    browser.wait("return document.getElementById('faults-plot')._fullLayout.font.color === '#1b2227'")
    assert button.get_attribute("aria-label") == "Theme: light"
    browser.driver.refresh()
    complete(browser)
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    browser.run("localStorage.clear()")
    assert browser.messages() == []


def test_tables_open_by_keyboard_and_the_menu_leads_to_sections(browser, complete, one):
    browser.open(one, 390)
    complete(browser)
    browser.find("#cell-table summary").send_keys(Keys.ENTER)
    browser.wait("return document.getElementById('cell-table').open")
    assert len(browser.driver.find_elements("css selector", "#cell-table tbody tr")) == 8
    browser.find("#menu a[href='#classes']").send_keys(Keys.ENTER)
    top = browser.wait(
        "const y = document.getElementById('classes').getBoundingClientRect().top; return Math.abs(y) < 120 && y + 1e-9"
    )
    assert top is not None
    browser.run("document.body.focus(); scrollTo(0, 0)")
    browser.find("#again .copy").click()
    browser.wait("return getSelection().toString().startsWith('kfl run --config')")
    assert browser.messages() == []


@pytest.mark.parametrize("width", [1280, 390])
def test_several_runs_are_compared_in_the_same_charts(browser, complete, two, width):
    browser.open(two, width)
    names = complete(browser)
    assert "difference" in names and "schedule" not in names
    assert len(browser.run("return document.getElementById('accuracy-plot').data")) == 2
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.messages() == []
    assert [url for url in browser.asked() if not url.startswith(("data:", "blob:"))] == [two]


def test_what_a_stranger_wrote_is_shown_and_not_done(browser, complete, folders, tmp_path):
    wicked = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script><a href='javascript:1'>x</a>"
    folder = tmp_path / "<svg onload=alert(1)>"
    shutil.copytree(folders / "kfl", folder)
    config = (folder / "config.toml").read_text()
    for word in ("kfl", "lyapunov", "mnist-5k"):
        config = config.replace(f'"{word}"', json.dumps(wicked))
    (folder / "config.toml").write_text(config)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"rejected": [{"device": 0, "reason": wicked}], "faults": [{"device": 1, "fault": wicked}]}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser.open(build_report([folder], tmp_path / "page.html").as_uri())
    complete(browser)
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('main img, main script, main a, main svg a').length") == 0
    assert "<img src=x" in browser.run("return document.getElementById('faults-plot').textContent")
    assert browser.messages() == [], "nothing had to be blocked either"


def test_a_fleet_of_thousands_is_drawn_in_groups(browser, complete, tmp_path):
    page = build_report([made_up_run(tmp_path / "run", 10_000, 30, 1000)]).as_uri()
    browser.open(page)
    names = complete(browser)
    assert all(browser.run(DRAWN, name)["marks"] >= 1 for name in names) and len(names) == 11
    assert browser.run("return document.querySelectorAll('#main path.point').length") < 1000
    assert browser.messages() == []


SHOWN = """
return ['accuracy', 'difference', 'devices', 'fairness', 'energy', 'pace'].map((name) =>
  document.getElementById(name + '-plot').data.some(
    (t) => t.meta && t.meta.group === arguments[0] && t.visible !== false));
"""


def test_a_group_is_hidden_in_every_chart_and_table_by_its_box_or_in_a_legend(browser, complete, seeds):
    browser.open(seeds)
    complete(browser)
    assert browser.run("return document.querySelector('h1').textContent").startswith("kfl and local on mnist-5k")
    assert browser.run(SHOWN, 0) == [True] * 6
    browser.find("#show-0").click()
    browser.wait("return document.querySelector('tr[data-group=\"0\"]').hidden")
    complete(browser)
    assert browser.run(SHOWN, 0) == [False] * 6 and browser.run(SHOWN, 1)[0]
    browser.find("#show-0").click()
    browser.wait("return !document.querySelector('tr[data-group=\"0\"]').hidden")
    complete(browser)
    assert browser.run(SHOWN, 0) == [True] * 6
    browser.driver.find_elements("css selector", "#accuracy-plot .legendtoggle")[1].click()
    browser.wait("return !document.getElementById('show-1').checked", patience_s=20)
    complete(browser)
    assert browser.run(SHOWN, 1)[0] is False and browser.run(SHOWN, 0) == [True] * 6
    assert browser.messages() == []


def test_smoothing_takes_the_mean_of_a_window_around_each_point(browser, complete, seeds):
    browser.open(seeds)
    complete(browser)
    line = "return document.getElementById('accuracy-plot').data[2].y"
    raw = browser.run(line)
    browser.find("#smoothing").send_keys("over 3")
    browser.wait("return document.getElementById('smoothing').value === '3'")
    complete(browser)
    smooth = browser.wait(f"const y = (() => {{ {line} }})(); return y[1] !== {raw[1]!r} && y")
    assert smooth[0] == raw[0] and smooth[-1] == raw[-1]
    assert smooth[1:-1] == pytest.approx([sum(raw[k - 1 : k + 2]) / 3 for k in range(1, len(raw) - 1)])


@pytest.mark.parametrize("page", ["one", "seeds"])
def test_on_a_phone_the_whole_menu_is_seen_and_wide_tables_say_so(browser, complete, request, page):
    browser.open(request.getfixturevalue(page), 390, 844)
    complete(browser)
    ends = browser.run(
        "return Array.from(document.querySelectorAll('#menu a'), (a) => {const b = a.getBoundingClientRect();"
        " return [b.left, b.right]})"
    )
    assert len(ends) >= 4 and all(0 <= left < right <= 390 for left, right in ends)
    if page == "one":
        browser.find("#fairness-table summary").send_keys(Keys.ENTER)
    wider = "b.scrollWidth > b.clientWidth && !b.nextElementSibling.hidden"
    browser.wait(
        f"const b = document.querySelector(arguments[0]); return {wider}",
        "#fairness-table .scroll" if page == "one" else "header .scroll",
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_near_and_far_devices_can_be_seen_in_either_theme(browser, complete, one, theme):
    browser.open(one, theme=theme)
    complete(browser)
    panel = browser.run("return getComputedStyle(document.documentElement).getPropertyValue('--panel').trim()")
    for chart in ("cell", "shares"):
        scale = browser.run("return document.getElementById(arguments[0] + '-plot').data[0].marker.colorscale", chart)
        for _, ink in scale:
            brighter, darker = sorted((luminance(ink), luminance(panel)), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 3, (theme, ink)


def luminance(color):
    """Relative luminance as WCAG defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_numbers_of_classes_never_overlap_and_ticks_read_naturally(browser, complete, one):
    browser.open(one, 390, 844)
    complete(browser)
    boxes = browser.run(
        "return Array.from(document.querySelectorAll('#knowledge-plot .textpoint text'), (t) =>"
        " t.getBoundingClientRect()).filter((b) => b.width > 0).map((b) => [b.left, b.right, b.top, b.bottom])"
    )
    assert boxes
    for index, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:index]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
    assert "% of the variance" in browser.run(
        "return document.getElementById('knowledge-plot')._fullLayout.xaxis.title.text"
    )
    browser.find("#shares-view-1 + span").click()
    ticks = browser.wait(
        "const p = document.getElementById('shares-plot'); return p.dataset.drawn === 'Power' &&"
        " p._fullLayout.yaxis._vals.map((tick) => tick.text).filter(Boolean)"
    )
    assert ticks and all(re.fullmatch(r"(1|2|5)0{0,2} [pnµmk]?W", tick) for tick in ticks)
