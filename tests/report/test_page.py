"""The page as a file: complete, escaped, labeled, and of a bearable size."""

import base64
import gzip
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import KflError, RunFolderError
from kfl.experiment import Faults
from kfl.report import build_report, read_run
from kfl.report.groups import group_runs
from kfl.report.page import asset, compose, render
from kfl.report.text import sentence
from tests.reference.runs import made_up_run

WICKED = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script></script><b>&amp;'


class Reader(HTMLParser):
    """Every tag with its attributes, the scripts, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.scripts, self.words, self.within = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        if self.within == "script":
            kind, so_far = self.scripts[-1]
            self.scripts[-1] = (kind, so_far + data)
        elif self.within != "style":
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "one.html"
    build_report([runs / "kfl"], out)
    return Reader(out.read_text())


def policy_of(page: Reader) -> dict[str, str]:
    raw = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    return {part.split()[0]: part.partition(" ")[2] for part in map(str.strip, raw.split(";"))}


def test_only_kfls_own_scripts_may_run_and_nothing_is_fetched(page):
    policy = policy_of(page)
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    run = [body for kind, body in page.scripts if "type" not in kind]
    (packed,) = [body for kind, body in page.scripts if kind.get("id") == "plotly"]
    unpacked = gzip.decompress(base64.b64decode(packed)).decode()
    assert unpacked == asset("plotly-cartesian.min.js")
    run.append(unpacked)
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in run}
    assert hashes == set(policy["script-src"].split())
    loading = ("src", "srcset", "action", "data", "poster", "background")
    assert not [tag for tag in page.tags if any(name in tag[1] for name in loading)]
    assert all(link["href"].startswith("#") for link in page.all("a"))
    assert not page.all("link") and not page.all("iframe")
    assert not [tag for tag in page.tags if any(name.startswith("on") for name in tag[1])]


def test_every_chart_is_labelled_and_has_a_table(page):
    plots = [div for div in page.all("div") if "data-figure" in div]
    figures = json.loads(next(body for kind, body in page.scripts if kind.get("id") == "figures"))
    assert {plot["data-figure"] for plot in plots} == set(figures)
    assert {"accuracy", "devices", "fairness", "energy", "pace", "schedule", "participants", "shares"} <= set(figures)
    assert {"cell", "knowledge", "difference", "faults"} <= set(figures)
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 20 for plot in plots)
    assert len(page.all("table")) >= len(plots)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {link["href"][1:] for link in page.all("a")}
    assert targets <= set(ids)
    for control in page.all("button") + [one for one in page.all("input") if one["type"] == "range"]:
        assert "aria-label" in control or "data-copy" in control
    assert page.all("html")[0]["lang"] == "en"


def test_the_top_says_what_happened(page, runs):
    summary = json.loads((runs / "kfl" / "summary.json").read_text())
    text = "".join(page.words).replace("\N{NO-BREAK SPACE}", " ")
    assert f"8 devices learned mnist-5k with kfl and reached {100 * summary['accuracy']:.2f} % accuracy" in text
    assert "finished, 15 rounds" in text
    assert "kfl run --config" in text and "[scheduler]" in text


def test_a_strangers_folder_cannot_inject_anything(copy, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(copy, folder)
    config = (folder / "config.toml").read_text()
    quoted = json.dumps(WICKED)
    config = config.replace('"mnist-5k"', quoted).replace('"kfl"', quoted).replace('"lyapunov"', quoted)
    (folder / "config.toml").write_text(config)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["status"] = WICKED
        line["rejected"] = [{"device": 0, "reason": WICKED}]
        line["faults"] = [{"device": 1, "fault": WICKED}]
    lines[3] |= {
        name: [] for name in lines[3] if isinstance(lines[3][name], list) and name not in ("rejected", "faults")
    }
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = json.loads((folder / "environment.json").read_text())
    environment |= {"kfl": WICKED, "commit": WICKED, "packages": {WICKED: WICKED}, "processor": WICKED}
    environment["dataset"] |= {"name": WICKED, "note": WICKED, "fingerprint": WICKED}
    (folder / "environment.json").write_text(json.dumps(environment))
    summary = json.loads((folder / "summary.json").read_text()) | {"regime": WICKED, "proposition2": WICKED}
    (folder / "summary.json").write_text(json.dumps(summary))
    for several in ([folder], [folder, copy]):
        page = Reader(build_report(several, tmp_path / "page.html").read_text())
        assert not page.all("img") and not page.all("b")
        assert len(page.scripts) == 3
        assert all(kind.get("id") == "figures" or "hacked" not in body for kind, body in page.scripts)
        figures = next(body for kind, body in page.scripts if kind.get("id") == "figures")
        assert "<" not in figures
        assert "window.hacked=1" in "".join(page.words), "it is shown, as text"
        for figure in json.loads(figures).values():
            assert "<img" not in json.dumps(figure["views"]), "Plotly would read it as HTML"


def test_several_runs_side_by_side(runs, tmp_path):
    page = Reader(build_report([runs], tmp_path / "page.html").read_text())
    text = "".join(page.words)
    assert "kfl · lyapunov, kfl · uniform and fedavg · lyapunov on mnist-5k: 8 devices" in text
    assert "Configuration differences" in text and "algorithm.name: kfl → fedavg" in text
    assert len([box for box in page.all("input") if box["type"] == "checkbox"]) == 3
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_what_a_run_does_not_have_is_said(runs, tmp_path):
    texts = [
        "".join(Reader(build_report([runs / name], tmp_path / "x.html").read_text()).words)
        for name in ("plain", "fedavg")
    ]
    assert "has no radio" in texts[0] and "No faults" in texts[0]
    assert "fedavg does not share knowledge" in texts[1]


def test_what_is_not_there_is_said(copy, tmp_path):
    (copy / "trail.jsonl").unlink()
    assert "has no snapshots" in "".join(Reader(build_report([copy]).read_text()).words)
    (copy / "rounds.jsonl").write_text("")
    (copy / "summary.json").unlink()
    (copy / "devices.json").unlink()
    shutil.rmtree(copy / "local-only")
    assert "no round is finished yet" in "".join(Reader(build_report([copy]).read_text()).words)


@pytest.mark.parametrize(("devices", "rounds", "most"), [(100, 200, 2e6), (10_000, 60, 2e6)])
def test_pages_are_of_a_bearable_size(tmp_path, devices, rounds, most):
    folder = made_up_run(tmp_path / "run", devices, rounds, devices // 10)
    assert build_report([folder]).stat().st_size < most


def test_the_same_folder_makes_the_same_page(runs):
    assert render(compose(group_runs([read_run(runs / "kfl")]))) == render(
        compose(group_runs([read_run(runs / "kfl")]))
    )


def test_a_damaged_folder_is_refused_in_one_sentence_or_shown(copy):
    draw = random.Random(4)
    names = ("config.toml", "rounds.jsonl", "trail.jsonl", "devices.json", "summary.json", "environment.json")
    outcomes = set()
    for _ in range(120):
        path = copy / draw.choice(names)
        whole = path.read_bytes()
        place, length = draw.randrange(len(whole)), draw.choice((1, 3, 20))
        token = draw.choice((b"", b"null", b"1e999", b"[]", b'"x"', b"-1", b"\xff", b"{"))
        path.write_bytes(whole[:place] + token + whole[place + length :])
        try:
            compose(group_runs([read_run(copy)]))
            outcomes.add("shown")
        except KflError as problem:
            assert str(problem).count("\n") == 0
            outcomes.add("refused")
        path.write_bytes(whole)
    assert outcomes == {"shown", "refused"}


def test_values_of_any_kind_where_others_belong(copy):
    whole = json.loads((copy / "rounds.jsonl").read_text().splitlines()[0])
    for name in whole:
        for value in (None, 1, -1, "a", [], {}, [None], ["a"], [[]], [{}], {"a": 1}, 1e400, True):
            (copy / "rounds.jsonl").write_text(json.dumps(whole | {name: value}) + "\n")
            try:
                compose(group_runs([read_run(copy)]))
            except RunFolderError as problem:
                assert "damaged" in str(problem)


def test_the_command_writes_into_the_run_folder_or_where_it_is_told(copy, tmp_path, capsys, monkeypatch):
    assert main(["report", str(copy)]) == 0
    assert f"The page is {copy / 'report.html'}" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(copy), str(copy / "local-only")]) == 0
    beside = re.escape(str(copy.parent / "report.html"))
    assert re.search(rf"The page is {beside} \(\d\.\d MB, made in \d+\.\d s\)", capsys.readouterr().out)
    assert main(["report", str(copy), "--out", "mine.html"]) == 0
    assert (tmp_path / "mine.html").read_bytes() == (copy / "report.html").read_bytes()


def test_a_page_is_made_without_pytorch(runs, tmp_path):
    program = f"""
import sys
from pathlib import Path
from kfl.report import build_report, watch_server
build_report([Path({str(runs / "kfl")!r})], Path({str(tmp_path / "page.html")!r}))
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_refuses_in_one_sentence(tmp_path, capsys):
    for arguments, words in (
        ([str(tmp_path)], "is not a run folder"),
        ([], "RUN"),
        ([str(tmp_path / "nowhere"), "--out", "x.html"], "is not a run folder"),
    ):
        assert main(["report", *arguments]) == 2
        said = capsys.readouterr().err.strip()
        assert words in said and said.count("\n") == 0


def test_a_page_that_cannot_be_written_is_said(copy, tmp_path, capsys):
    assert main(["report", str(copy), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_in_which_no_device_took_part_says_so(tmp_path):
    empty = kfl.Experiment(devices=4, rounds=2, widths=(8,), faults=Faults(schedule=("leave:0:all",)))
    kfl.run(empty, tmp_path / "empty")
    assert sentence(read_run(tmp_path / "empty")).startswith(
        "No device took part in any of 2 rounds, so that nothing was learned."
    )
    assert "no device took part" in build_report([tmp_path / "empty"]).read_text()
