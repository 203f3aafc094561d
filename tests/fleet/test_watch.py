"""What a team watches a fleet by: metrics, alerts, dashboard, status as JSON, structured logs.

One small fleet with real messages is played once: a device is silent, another one is refused, uploads have noise.
"""

import importlib.util
import io
import json
import logging
import math
import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kfl.algorithms import Kfl
from kfl.algorithms.privacy import privacy_cost
from kfl.cli.main import main
from kfl.core.errors import ConfigError
from kfl.runfolder import RoundLog, RunFolder, RunReader
from kfl.scheduling import SCHEDULERS, Status
from kfl.wireless import CellConfig
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.logs import EVENTS, FORMATS, JsonLines, following, format_from_environment, logging_as, note
from kfl_fleet.messages.records import RoundFacts
from kfl_fleet.project import write_project
from kfl_fleet.server.app import FleetServer
from kfl_fleet.server.messaging import Courier
from kfl_fleet.server.metrics import MOST_CODES, Metrics
from kfl_fleet.server.status import read_status
from tests.fleet.conftest import SHORT_WAITS, LoopGrid, small_experiment
from tests.fleet.messages import changed, round_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROMTOOL = shutil.which("promtool")
GIVEN_BY_PROMETHEUS = {"fleet", "job", "instance", "le"}
NOISY = Kfl(local_steps=1, clip_norm=1.0, noise_multiplier=3.0)
WHOLE = CellConfig(bandwidth_hz=1e6, min_cpu_hz=1e7, static_power_w=0.01)


def twist(device, asked, reply):
    """Device 1 is silent from round 1 on, and device 2 claims too many right predictions in round 0."""
    if device == 1 and (round_of(asked) or 0) >= 1:
        return None
    if (device, round_of(asked)) == (2, 0):
        return changed(reply, correct="all")
    return reply


def make_server(grid, config, folder):
    target = RunFolder(folder)
    target.prepare(config.experiment)
    return FleetServer(config, target, Courier(grid, config.fleet.poll_s, grid.clock))


def samples_of(metrics):
    """Every exported sample: its value by its name and labels."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A fleet of four after three rounds: its server, its run folder, and what it logged as JSON."""
    folder = tmp_path_factory.mktemp("watched")
    experiment = small_experiment(widths=(16,), algorithm=NOISY, scheduler=SCHEDULERS["all"](), radio=WHOLE, rounds=3)
    config = ServerConfig(experiment, FleetSettings(**SHORT_WAITS, privacy_alert_epsilon=20.0))
    grid = LoopGrid(folder / "fleet", config)
    grid.twist = twist
    said = io.StringIO()
    with logging_as("json", stream=said):
        server = make_server(grid, config, folder / "run")
        server.runner.start()
        server.show_standing()
        server.runner.play()
    return server, folder / "run", said.getvalue()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return write_project(tmp_path_factory.mktemp("project") / "my-fleet").folder


# ── Metrics ──────────────────────────────────────────────────────────────────


def test_metrics_say_what_the_run_folder_says(watched):
    server, folder, _ = watched
    found, status = samples_of(server.metrics), read_status(folder)
    assert found[("kfl_rounds_done",)] == 3 == found[("kfl_round_seconds_count",)]
    assert found[("kfl_rounds_total", ("code", "no_quorum"))] == 0
    assert found[("kfl_incidents_total", ("code", "worker_died"))] == 0, "or the first one would be no increase"
    assert found[("kfl_energy_joules_total",)] == pytest.approx(status.energy_j)
    assert found[("kfl_incidents_total", ("code", "late"))] == status.late == 2
    assert found[("kfl_rejected_total", ("code", "not_whole_number"))] == status.rejected == 1
    assert found[("kfl_uploads_total",)] == sum(one.used for one in status.devices)
    facts = RunReader(folder).fleet_rounds()
    answers = [answer for fact in facts for answer in fact["answers"].values() if "bytes" in answer]
    assert found[("kfl_answer_seconds_count",)] == len(answers) == 10
    assert found[("kfl_received_bytes_total",)] == sum(answer["bytes"] for answer in answers)
    assert found[("kfl_sent_bytes_total",)] == sum(fact["sent_bytes"] for fact in facts)
    for one in status.devices:
        label = ("device", str(one.device))
        assert found[("kfl_device_energy_joules_total", label)] == pytest.approx(one.energy_j)
        assert found[("kfl_device_budget_spent_ratio", label)] == pytest.approx(one.energy_j / one.budget_j)
        assert found[("kfl_device_unanswered", label)] == one.unanswered == (2 if one.device == 1 else 0)
        assert found[("kfl_device_rejected_total", label)] == one.rejected
        assert found[("kfl_device_incidents_total", label)] + one.rejected == sum(one.incidents.values())
    assert found[("kfl_unanswered_max",)] == 2
    last = found[("kfl_last_round_timestamp_seconds",)]
    assert found[("kfl_device_last_answer_timestamp_seconds", ("device", "0"))] == last
    assert found[("kfl_last_answer_oldest_timestamp_seconds",)] < last


def test_a_server_that_continues_counts_the_whole_run(watched, tmp_path):
    server, folder, _ = watched
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    again = make_server(LoopGrid(tmp_path / "fleet", server.config), server.config, tmp_path / "run")
    before, after = samples_of(server.metrics), samples_of(again.metrics)
    for key, value in before.items():
        if key[0].endswith(("_total", "_count", "_bucket", "_sum", "_done", "_timestamp_seconds")):
            assert after[key] == pytest.approx(value), key
    assert again.fleet.privacy.uploads == server.fleet.privacy.uploads


@pytest.fixture(scope="module")
def reference():
    """The reference page of fleets, as MkDocs fills it in."""
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.on_page_markdown((DOCS / "reference" / "fleet.md").read_text(encoding="utf-8"))


def documented(page, pattern):
    """Names in the first column of the page's tables that have something in the last."""
    return set(re.findall(rf"^\| <code.*?>({pattern})</code> \|(?:.*\|)? \S.* \|$", page, re.MULTILINE))


def test_every_metric_and_every_alert_is_documented(watched, project, reference):
    names = {re.sub("_(bucket|sum|count)$", "", key[0]) for key in samples_of(watched[0].metrics)}
    assert names == documented(reference, "kfl_[a-z_]+")
    assert {rule["alert"] for rule in rules_of(project)} == documented(reference, "Kfl[A-Za-z]+")


def test_every_event_that_is_logged_is_documented(reference):
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "kfl_fleet").rglob("*.py")]
    logged = {event for text in sources for event in re.findall(r'\b(?:note|warn)\(\s*"(\w+)"', text)}
    assert len(logged) > 20
    assert {"log", *logged} == set(EVENTS) <= documented(reference, "[a-z_]+")


def test_a_large_fleet_has_no_series_per_device_but_the_worst_device(watched):
    server, _, _ = watched
    fleet = replace(server.config.fleet, metrics_devices=3)
    large = Metrics(replace(server.config, fleet=fleet))
    for entry in server.runner.logs:
        large.round(entry, RoundFacts())
    large.fleet(range(4), range(3), 0)
    large.standing(dict.fromkeys(range(4), 2.0), {0: 1.5, 3: 2.5})
    names = {key[0] for key in samples_of(large)}
    assert not [name for name in names if name.startswith("kfl_device_")]
    assert samples_of(large)[("kfl_privacy_spent_max_epsilon",)] == 2.5
    energy_j = server.runner.state.accounts.compute_j + server.runner.state.accounts.upload_j
    assert samples_of(large)[("kfl_budget_spent_max_ratio",)] == pytest.approx(energy_j.max() / 2)


def test_without_noise_no_privacy_is_promised(watched):
    server, _, _ = watched
    plain = Metrics(ServerConfig(small_experiment(), server.config.fleet))
    assert not [key for key in samples_of(plain) if "privacy" in key[0] or "epsilon" in key[0]]


def test_codes_cannot_fill_a_prometheus(watched):
    server, _, _ = watched
    metrics = Metrics(server.config)
    for index in range(3 * MOST_CODES):
        faults = ({"device": 0, "fault": f"fault-{index}"},)
        entry = RoundLog(index, None, (0,), (), (), (0.0,), (0.0,), 1.0, 0, 0, None, None, Status(), faults=faults)
        metrics.round(entry, RoundFacts())
    counts = {key: value for key, value in samples_of(metrics).items() if key[0] == "kfl_incidents_total"}
    assert sum(counts.values()) == 3 * MOST_CODES
    assert len(counts) <= MOST_CODES + 1


# ── Alerts and dashboard ─────────────────────────────────────────────────────


def selectors(query):
    """Names and matched labels of every series that a query reads, by a real parser of PromQL."""
    for variable, value in {"$__rate_interval": "5m", "$fleet": ".*"}.items():
        query = query.replace(variable, value)
    found = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))
        if isinstance(node, promql_parser.MatrixSelector):
            visit(node.vector_selector)
        for name in ("lhs", "rhs", "expr", "param"):
            if isinstance(child := getattr(node, name, None), promql_parser.Expr):
                visit(child)
        for child in getattr(node, "args", None) or ():
            visit(child)

    visit(promql_parser.parse(query))
    return found


def rules_of(project):
    groups = yaml.safe_load((project / "watch" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_of(project):
    return json.loads((project / "watch" / "grafana-dashboard.json").read_text())


def test_selectors_are_found_in_every_kind_of_expression():
    query = (
        'sum by (a) (rate(one{x="1"}[5m])) * 3 unless on (job) (time() - two) and topk(3, max_over_time(three[1h:5m]))'
    )
    assert [name for name, _ in selectors(query)] == ["one", "two", "three"]


def test_every_series_that_is_asked_for_is_exported(watched, project):
    server, _, _ = watched
    labels = {}
    for name, *pairs in samples_of(server.metrics):
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    asked = [rule["expr"] for rule in rules_of(project)]
    asked += [target["expr"] for panel in dashboard_of(project)["panels"] for target in panel["targets"]]
    found = [pair for query in asked for pair in selectors(query)]
    assert len(found) > 40
    for name, matched in found:
        if name != "up":  # Prometheus's own
            assert name in labels, f"{name} is asked for and not exported"
            assert matched <= labels[name] | GIVEN_BY_PROMETHEUS, (name, matched)
    used = {name.removesuffix("_bucket") for name, _ in found}
    wanted = {"kfl_rounds_done", "kfl_round_seconds", "kfl_answer_seconds", "kfl_device_last_answer_timestamp_seconds"}
    assert wanted <= used


def test_rules_have_what_prometheus_and_a_person_need(project):
    rules = rules_of(project)
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert "$labels.fleet" in rule["annotations"]["summary"]
    config = yaml.safe_load((project / "watch" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    port = write_port(project)
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{port}"]


def write_port(project):
    return ServerConfig.load(project / "server.toml").fleet.metrics_port


def test_grafana_reads_the_dashboard_whole(project):
    """Parsed into Grafana's own types and written back, nothing is lost."""
    written = dashboard_of(project)
    parsed = Dashboard.from_json(written)
    back = json.loads(JSONEncoder().encode(parsed))
    assert [panel["targets"] for panel in back["panels"]] == [panel["targets"] for panel in written["panels"]]
    assert [panel["gridPos"] for panel in back["panels"]] == [panel["gridPos"] for panel in written["panels"]]
    assert set(written) <= set(back)
    cells = Counter(
        (x, y)
        for panel in written["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1, "panels lie on one another"
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in written["panels"]}) == len(written["panels"])


SERIES = {
    'kfl_device_unanswered{fleet="f",device="3"}': "0x10 6x200",
    'kfl_device_budget_spent_ratio{fleet="f",device="2"}': "0.5x10 0.95x200",
    'kfl_device_rejected_total{fleet="f",device="4"}': "0x60 5x200",
    'kfl_rejected_total{fleet="f",code="shape"}': "0x60 5x200",
    'kfl_rounds_total{fleet="f",code="no_quorum"}': "0+1x200",
    'kfl_rounds_total{fleet="f",code="ok"}': "0+1x200",
    'kfl_privacy_spent_max_epsilon{fleet="f"}': "19x200",
    'kfl_privacy_alert_epsilon{fleet="f"}': "20x200",
    'kfl_last_round_timestamp_seconds{fleet="f"}': "0x200",
    'kfl_rounds_done{fleet="f"}': "3x200",
    'kfl_rounds_planned{fleet="f"}': "20x200",
    'kfl_incidents_total{fleet="f",code="worker_died"}': "0x60 4x200",
    'kfl_unanswered_max{fleet="f"}': "9x200",
    'kfl_uploads_total{fleet="f"}': "7x200",
    'up{job="kfl",instance="i",fleet="f"}': "1x20 0x200",
    'kfl_rounds_done{job="kfl",instance="i",fleet="f"}': "3x20 _x200",
    'kfl_rounds_planned{job="kfl",instance="i",fleet="f"}': "20x20 _x200",
}
FIRING = {"KflDeviceSilent", "KflBudgetNearlySpent", "KflDeviceRejected", "KflUploadsRejected", "KflNoQuorum",
          "KflPrivacyNearlySpent", "KflNoRound", "KflWorkersRestart", "KflServerGone",
          "KflNothingLearned"}  # fmt: skip


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: alerts were parsed, but NOT fired")
def test_prometheus_accepts_the_files_and_alerts_fire_when_they_should(project, tmp_path):
    watch = project / "watch"
    for words in (("check", "config", watch / "prometheus.yml"), ("check", "rules", watch / "alerts.yml")):
        done = subprocess.run([PROMTOOL, *words], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    tests = {
        "rule_files": [str(watch / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
                "promql_expr_test": [
                    {"expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}}) > bool 0',
                     "eval_time": "100m",
                     "exp_samples": [{"labels": "{}", "value": 1}] if rule["alert"] in FIRING else []}
                    for rule in rules_of(project)
                ],
            }
        ],
    }  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    words = [PROMTOOL, "test", "rules", tmp_path / "test.yml"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# ── Status ───────────────────────────────────────────────────────────────────


def test_status_as_json_keeps_its_schema(watched, capsys, monkeypatch):
    _, folder, _ = watched
    assert main(["deploy", "status", "--json", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["deploy", "status", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert set(found) == set(schema["required"]) == set(schema["properties"])
    device = schema["$defs"]["DeviceStatus"]
    assert all("description" in field or "$ref" in field for field in device["properties"].values())
    assert all(set(one) == set(device["required"]) == set(device["properties"]) for one in found["devices"])
    assert found["devices"][1]["incidents"] == {"late": 2}
    assert found["devices"][2]["incidents"] == {"rejected": 1}
    assert found["devices"][1]["last_answer_time"] < found["devices"][0]["last_answer_time"] == found["last_round_time"]


def test_privacy_is_the_accountants_number_for_every_upload_that_may_have_left(watched, capsys, monkeypatch):
    server, folder, _ = watched
    status = read_status(folder)
    members = server.roster.members
    for one in status.devices:  # the silent device may have sent what did not arrive, and pays for it
        cost = privacy_cost(NOISY, 3, members[one.device].profile.samples_per_class)
        assert one.privacy.uploads == 3
        assert (one.privacy.epsilon, one.privacy.delta) == (cost.epsilon, cost.delta)
        assert one.privacy.epsilon_with_training == cost.epsilon_with_training
        label = ("device", str(one.device))
        assert samples_of(server.metrics)[("kfl_device_privacy_epsilon", label)] == cost.epsilon
    assert [record["privacy"]["epsilon"] for record in RunReader(folder).devices()] == [
        one.privacy.epsilon for one in status.devices
    ]
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["deploy", "status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "privacy spent so far" in shown
    assert f"{status.devices[0].privacy.epsilon:.3g}" in shown


def test_a_worker_that_had_to_be_started_anew_is_a_restart(watched, tmp_path):
    shutil.copytree(watched[1], tmp_path / "run")
    *earlier, last = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    faults = [{"device": 3, "fault": "error", "code": "worker_died", "text": "killed by signal 9"}]
    last = json.dumps({**json.loads(last), "faults": faults})
    (tmp_path / "run" / "rounds.jsonl").write_text("\n".join([*earlier, last, ""]))
    device = read_status(tmp_path / "run").devices[3]
    assert (device.restarts, device.incidents, device.lost) == (1, {"worker_died": 1}, 1)


# ── Logs ─────────────────────────────────────────────────────────────────────


def test_the_server_logs_one_json_object_per_event(watched):
    _, _, said = watched
    lines = [json.loads(line) for line in said.splitlines()]
    assert all({"time", "level", "event", "text"} <= set(line) for line in lines)
    events = Counter(line["event"] for line in lines)
    assert (events["device_joined"], events["round_done"], events["device_incident"]) == (4, 3, 3)
    rounds = [line for line in lines if line["event"] == "round_done"]
    assert [(line["round"], line["used"]) for line in rounds] == [(1, 3), (2, 3), (3, 3)]
    assert all(line["level"] == "info" and line["seconds"] > 0 for line in rounds)
    incident = next(line for line in lines if line["event"] == "device_incident" and line["device"] == 1)
    assert (incident["round"], incident["code"], incident["level"]) == (2, "late", "warning")


@given(st.text(), st.dictionaries(st.text(min_size=1), st.floats() | st.text() | st.integers() | st.none()))
def test_whatever_is_logged_is_one_line_of_json_with_its_own_words(text, fields):
    record = logging.LogRecord("kfl", logging.INFO, "x", 1, "%s", (text,), None)
    record.kfl_event, record.kfl_fields = "tried", fields
    line = JsonLines().format(record)
    assert len(line.splitlines()) == 1
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["event"], found["level"]) == ("tried", "info")
    for name, value in fields.items():
        if name not in ("time", "level", "event", "text") and value is not None:
            assert found[name] == (None if isinstance(value, float) and not math.isfinite(value) else value)


def test_an_error_keeps_its_trace_in_one_line_and_text_stays_text(capsys):
    try:
        raise ValueError("two\nlines")
    except ValueError as problem:
        with logging_as("json"):
            note("device_failed", "It failed.", level=logging.ERROR, error=problem, device=3)
            logging.getLogger("flwr").warning("Flower's own\nline")
        with logging_as("text", prefix="kfl: "):
            note("device_failed", "It failed.", device=3)
    ours, flowers, text = capsys.readouterr().err.splitlines()
    found = json.loads(ours)
    assert (found["error"], found["device"]) == ("ValueError", 3)
    assert "two\nlines" in found["trace"]
    assert json.loads(flowers)["logger"] == "flwr"
    assert text == "kfl: It failed."


def test_lines_are_passed_on_whole_also_when_the_file_is_rotated(tmp_path):
    path, stream = tmp_path / "server.log", io.StringIO()
    path.write_text("before\n")
    with following(path, stream, look_s=0.01):
        with path.open("a") as file:
            for part in ("one\ntw", "o\n"):
                file.write(part)
                file.flush()
                time.sleep(0.1)
        path.rename(tmp_path / "server.log.1")
        path.write_text("three\n")
    assert stream.getvalue() == "one\ntwo\nthree\n"


def test_a_server_keeps_its_log_in_its_run_folder(loop, small, serve_fleet):
    grid, config = loop(small(rounds=1, widths=(16,)), log_format="json")
    folder = serve_fleet(grid, config)
    lines = [json.loads(line) for line in (folder / "server.log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["device_joined"] * 4 + ["round_done", "run_finished"]
    assert read_status(folder).state == "finished"


def test_a_format_that_does_not_exist_is_refused_in_a_sentence():
    assert FORMATS == ("text", "json")
    with pytest.raises(ConfigError, match="KFL_LOG_FORMAT is 'xml'"):
        format_from_environment({"KFL_LOG_FORMAT": "xml"})
    for name, value in {"metrics_host": "all", "metrics_devices": -1, "privacy_delta": 0.0,
                        "privacy_alert_epsilon": -1.0}.items():  # fmt: skip
        with pytest.raises(ConfigError, match=f"fleet.{name} is"):
            FleetSettings(**{name: value}).validate()
