"""The worst names through whole products: a report, a fleet's status and metrics, a run's summary, files.

A page of hostile names must have the very shape of the page of plain ones: a name adds no element and no attribute.
"""

import io
import json
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.cli.display import print_summary
from kfl.cli.main import main
from kfl.cli.options import new_folder
from kfl.comparison.execution import run_paths
from kfl.core.config import dump_toml
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.files import write_json
from kfl.core.text import scrub
from kfl.progress import ManyDisplay, Progress
from kfl.report import build_report
from kfl.report.page import asset
from kfl.runfolder import RunFolder, RunReader
from kfl.scheduling import Status
from tests.reference.nasty_names import NASTY, harmless
from tests.reference.runs import made_up_run

HOSTILE = [name for name in NASTY.values() if name.strip()]
PLAIN = [f"name-{number}" for number in range(len(HOSTILE))]
WRITABLE = [name for name in HOSTILE if not any(0xD800 <= ord(letter) < 0xE000 for letter in name)]
"""Those that a file in UTF-8 can hold."""


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes, the figures, and the text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.figures, self.words, self.inside = [], {}, [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, *sorted(name for name, _ in attrs)))
        self.inside = "figures" if ("id", "figures") in attrs else tag

    def handle_endtag(self, tag):
        self.elements.append((f"/{tag}",))
        self.inside = ""

    def handle_decl(self, decl):
        self.elements.append((decl,))

    def handle_comment(self, data):
        self.elements.append(("comment",))

    def handle_data(self, data):
        if self.inside == "figures":
            self.figures = json.loads(data)
        elif self.inside not in ("script", "style"):
            self.words.append(data)


def texts_of(value):
    """Every text in the figures, with the key it stands under."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield "key", key
            yield from ((key if kind == "value" else kind, text) for kind, text in texts_of(one))
    elif isinstance(value, list):
        for one in value:
            yield from texts_of(one)
    elif isinstance(value, str):
        yield "value", value


def fill(folder, names):
    """Put names wherever a run folder has words: settings, hardware, data, statuses, faults and reasons."""
    given = cycle(names)
    config = (folder / "config.toml").read_text()
    for word in ("mnist-5k", "kfl", "uniform", "shards"):
        config = config.replace(f'"{word}"', json.dumps(next(given), ensure_ascii=False).replace("\x7f", "\\u007f"))
    (folder / "config.toml").write_text(config, encoding="utf-8")
    words = ("kfl", "commit", "started", "python", "processor", "gpu", "platform")
    environment = {word: next(given) for word in words} | {"packages": {name: name for name in names}}
    environment["dataset"] = {word: next(given) for word in ("name", "path", "fingerprint", "note")}
    environment["traces"] = {name: {"path": name, "fingerprint": name} for name in names}
    environment["given_as_objects"] = ["dataset", "models"]
    write_json(folder / "environment.json", environment)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        (one, two, three), name = line["devices"], names[number % len(names)]
        line["status"] = {"code": name, "text": name}
        line["faults"] = [{"device": one, "fault": name, "code": name, "text": name}]
        line["rejected"] = [{"device": two, "code": "failed", "text": name}, {"device": three, "reason": name}]
        if number % 9 == 0:
            line |= {key: [] for key in ("devices", "share", "power_w", "compute_energy_j", "upload_energy_j")}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def page_of(paths, out):
    text = build_report(paths, out).read_text(encoding="utf-8")
    for name in ("report.css", "plotly-cartesian.min.js", "report.js"):
        text = text.replace(asset(name), "")
    return text, Shape(text)


def check_alike(hostile, plain):
    """That the first page is the second in other words."""
    text, shape = hostile
    assert harmless(text.replace("\t", ""))
    assert shape.elements == plain[1].elements
    found, expected = list(texts_of(shape.figures)), list(texts_of(plain[1].figures))
    assert len(found) == len(expected)
    for (key, one), (_, other) in zip(found, expected, strict=True):
        assert harmless(one) and "\n" not in one, key
        assert one.count("<") == other.count("<"), "Plotly would read it as HTML"
        assert len(one) < len(other) + 400, "a legend of endless length"
        assert "template" not in key or one == other


def test_a_page_of_one_run(tmp_path):
    pages = []
    for kind, names in (("hostile", WRITABLE), ("plain", PLAIN[: len(WRITABLE)])):
        folder = fill(made_up_run(tmp_path / kind, devices=6, rounds=len(WRITABLE), chosen=3), names)
        pages.append(page_of([folder], tmp_path / f"{kind}.html"))
    check_alike(*pages)
    assert "<script>window.hacked=1</script>" in "".join(pages[0][1].words), "it is shown, as text"


WORST = ("tag", "attribute", "single quotes", "link of Plotly", "template of Plotly", "line break", "nul", "very long")


def test_a_page_of_runs_under_such_labels(tmp_path):
    """Every label with two runs, so that groups have bands; the folders' own names are strange, too."""
    pages = []
    for kind, names in (("hostile", [NASTY[one] for one in WORST]), ("plain", PLAIN[: len(WORST)])):
        base = tmp_path / kind
        folders = [fill(made_up_run(base / names[n], devices=4, rounds=9, chosen=3, seed=n), names) for n in (1, 5)]
        entries = {name: {"runs": {str(seed): one.name for seed, one in enumerate(folders)}} for name in names}
        write_json(base / "comparison.json", {"entries": entries, "reference": names[3]})
        pages.append(page_of([base], tmp_path / f"{kind}.html"))
    check_alike(*pages)


def fleet_of(folder, names):
    """A run folder of a fleet whose nodes, models, meters, refusals and faults have these names."""
    from kfl_fleet.messages.profile import Profile

    made_up_run(folder, devices=len(names), rounds=3, chosen=3)
    fill(folder, names)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["faults"] = [
            {"device": device, "fault": name, "code": f"worker_{name}" if device % 2 else "failed", "text": name}
            for device, name in enumerate(names)
        ]
        line["rejected"] = [{"device": 0, "code": name, "array": name, "text": name} for name in names]
        line["clipped"] = [{"device": 0, "code": name, "field": name} for name in names]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    members = {
        str(device): {
            "node": str(device),
            "profile": Profile(
                device, 2, 64, 1000, 900, 2000, 1900, (8,), 30, (10, 20), 5, 3, model=name, meter=name
            ).to_json(),
            "name": name,
            "cuts": [{"code": name, "field": name}],
        }
        for device, name in enumerate(names)
    }
    refused = {name: {"code": "no_profile", "text": name} for name in names}
    write_json(folder / "fleet.json", {"run": names[0], "devices": members, "refused": refused})
    return folder


def test_the_status_of_a_fleet_as_table_and_as_json(tmp_path, capsys):
    folder = fleet_of(tmp_path / "run", WRITABLE)
    assert main(["deploy", "status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert len(shown) < 200_000
    assert sum(line.startswith("Node ") and " cannot join: " in line for line in shown.split("\n")) == len(WRITABLE)
    assert main(["deploy", "status", "--json", str(folder)]) == 0
    text = capsys.readouterr().out
    assert harmless(text)
    found = json.loads(text)
    assert found["refused"] == {name: name for name in WRITABLE}, "programs read what was written"
    assert [one["model"] for one in found["devices"]] == [scrub(name) for name in WRITABLE]


def test_metrics_of_a_fleet_that_goes_on_with_such_a_run(tmp_path):
    from prometheus_client import generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from kfl_fleet import FleetSettings, ServerConfig
    from kfl_fleet.messages.records import RoundFacts
    from kfl_fleet.server.metrics import Metrics, round_sentence

    logs = RunReader(fleet_of(tmp_path / "run", HOSTILE[:40])).rounds()
    metrics = Metrics(ServerConfig(kfl.Experiment(devices=40, rounds=3), FleetSettings()))
    for log in logs:
        metrics.round(log, RoundFacts(time=HOSTILE[0]))
        assert harmless(round_sentence(log, 3))
    text = generate_latest(metrics.registry).decode()
    assert harmless(text)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    rejected = {sample.labels["code"]: sample.value for sample in families["kfl_rejected"].samples}
    assert sum(rejected.values()) == 3 * 40
    assert max(map(len, rejected)) <= 48
    assert len(rejected) < 200


def test_what_peers_say_is_one_short_line_before_anybody_keeps_it():
    from kfl_fleet.messages.frames import RawArray
    from kfl_fleet.messages.profile import Profile
    from kfl_fleet.messages.protocol import PROTOCOL_VERSION
    from kfl_fleet.server.claim_limits import Belief
    from kfl_fleet.server.messaging import Answer
    from kfl_fleet.server.verdicts import EnergyLimits, Question, judge

    profile = Profile(0, 2, 64, 1000, 900, 2000, 1900, (8,), 30, (10, 20), 5, 3)
    question = Question(0, 0, profile, Belief(profile, 30, 5), {}, EnergyLimits(1.0, 1.0), deadline_s=1.0)
    usual = {"protocol": PROTOCOL_VERSION, "kind": "round", "round": 0, "device": 0}
    usual |= {"status": "ok", "digest": profile.digest(), "correct": 3}
    digests = set()
    for name in HOSTILE:
        read = Profile.read({**profile.values(), "model": name, "meter": name})
        said = [read.model, read.meter]
        strange = Answer(usual, {name: RawArray("bool", (1,), b"1")}, seconds=0.0, bytes=1)
        digests.add(strange.digest)
        refused = Answer({**usual, "status": "refused", "reason": name}, {}, seconds=0.0, bytes=1)
        other = Answer({**usual, "status": name}, {}, seconds=0.0, bytes=1)
        for answer, code in ((strange, "unexpected_array"), (refused, "device_refused"), (other, "unknown_status")):
            refusal = judge(question, answer).refusal
            assert refusal.code == code
            said += [str(refusal), *refusal.facts.values()]
        assert all(harmless(text) and "\n" not in text and len(text) <= 250 for text in said), name
    assert len(digests) == len(HOSTILE)


def test_a_summary_on_the_terminal(tmp_path, capsys):
    history = RunReader(made_up_run(tmp_path / "run", devices=6, rounds=3, chosen=3)).history()
    counts = {"fedavg_bits_up": 1e9, "rejected_uploads": 1, "lost_uploads": 1}
    records = tuple({**record, "rounds": 1} for record in history.devices)
    for name in HOSTILE:
        mine = type("Mine", (kfl.algorithms.Local,), {"name": name})()
        experiment = kfl.Experiment(devices=6, rounds=3, algorithm=mine, radio=None, dataset=f"{name}:load")
        nobody = tuple(replace(log, devices=(), status=Status.note(name)) for log in history.rounds)
        for rounds in (history.rounds, nobody):
            found = replace(history, rounds=rounds, summary=history.summary | counts, devices=records)
            print_summary(experiment, found, tmp_path / name.replace("/", "-"))
        display = ManyDisplay(name)
        display.on_progress(Progress(name, 1, 2, 3, 6, problem=name))
        shown = capsys.readouterr()
        assert harmless(shown.out + shown.err), name
        lines = shown.out.split("\n")
        assert sum(line.startswith("Look at it: kfl report ") for line in lines) == 2
        assert not any(line.startswith("kfl: all is well") for line in lines)


def test_settings_are_written_and_read_back():
    for name in WRITABLE:
        text = dump_toml({"dataset": name, "algorithm": {name: [name]}})
        assert tomllib.loads(text) == {"dataset": name, "algorithm": {name: [name]}}
        assert harmless(text)
        assert text.count("\n") == 4
    for name in set(HOSTILE) - set(WRITABLE):
        with pytest.raises(ConfigError, match=r"^algorithm\.x is .*, but must be text that UTF-8 can write\.$"):
            dump_toml({"algorithm": {"x": name}})


def test_a_dataset_under_such_a_name_is_read_and_kept_in_the_cache_alone(tmp_path):
    (tmp_path / "data").mkdir()
    content, read = io.BytesIO(), 0
    np.savez(content, x=np.ones((6, 2), dtype=np.float32), y=np.arange(6) % 2)
    for name in HOSTILE:
        path = tmp_path / "data" / f"{name.replace('/', '-')}.npz"
        try:
            path.write_bytes(content.getvalue())
        except (OSError, ValueError):  # no file can have this name
            continue
        assert kfl.load_dataset(str(path), cache_dir=tmp_path / "cache").classes == 2
        read += 1
    assert read > 20
    entries = list((tmp_path / "cache").iterdir())
    assert len(entries) == read
    assert all(re.fullmatch(r"npz-[A-Za-z0-9._-]+", entry.name) for entry in entries)
    assert {one.name for one in tmp_path.iterdir()} == {"data", "cache"}


def test_folders_of_runs_and_of_devices_stay_where_they_belong(tmp_path):
    from kfl_fleet.device.memory import Memory
    from kfl_fleet.messages.protocol import RefusedError

    some = [kfl.Experiment(dataset=f"{name}:load", devices=6, widths=(8,)) for name in WRITABLE]
    paths = run_paths(some, tmp_path)
    assert len(set(paths)) == len(some)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,150}", path.name) for path in paths)
    for name in HOSTILE:
        assert new_folder(name, f"{name}:load").parent == Path("runs")
        with pytest.raises(RefusedError, match="is not one that kfl gives"):
            Memory(tmp_path, name, 0)
    for name in ("../x", "/etc/x", "models/../../x"):
        with pytest.raises(RunFolderError, match="leads out of"):
            RunFolder(tmp_path / "run").receive({"config.toml": b"", name: b""})
    assert not (tmp_path / "x").exists()
