"""The playground without a browser: it decides what the library decides, and takes no nonsense."""

import contextlib
import http.client
import io
import json
import threading
from dataclasses import fields, replace
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.cli.main import main
from kfl.core.errors import ConfigError
from kfl.report.controls import CONTROLS, STARTS, Settings, command_lines, python_code, start
from kfl.report.playground import Play, cards, compose_play, playground_server, problem_file
from kfl.scheduling import SCHEDULERS, DriftScheduler, Dual, schedule
from kfl.wireless import PRESETS


def small(**more):
    return Settings(**({"devices": 12, "rounds": 8} | more))


@pytest.mark.parametrize("begin", ["paper-mnist", "nb-iot", "small-cell", "paper-mnist-modem"])
@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_it_decides_what_the_library_decides(begin, name):
    state = replace(start(begin), devices=12, rounds=8, scheduler=name, hard_budget=name == "dual", count=4)
    play = Play(state)
    play.advance(0)
    assert len(play.rounds) == 1  # at once, and then as time allows
    play.advance()
    horizon = schedule(play.problem, state.make_scheduler())
    assert play.done
    for mine, theirs in zip(play.rounds, horizon.rounds, strict=True):
        assert np.flatnonzero(mine.decision.chosen).tolist() == theirs.devices.tolist()
        assert mine.decision.share[theirs.devices].tolist() == theirs.share.tolist()
        assert mine.decision.power_w[theirs.devices].tolist() == theirs.power_w.tolist()
        assert mine.lower_bound <= mine.objective
        if isinstance(state.make_scheduler(), DriftScheduler):
            assert mine.objective == theirs.objective
    run = play.run
    np.testing.assert_allclose(run.device_energy_j, horizon.compute_energy_j + horizon.upload_energy_j)
    assert run.participation.tolist() == horizon.participation_count.tolist()
    assert run.time_s == pytest.approx(sum(one.time_s for one in horizon.rounds))
    assert run.bits_up == pytest.approx(state.payload_bits * run.uploads)
    if horizon.parts_j is not None:
        for part, joules in run.parts_j.items():
            np.testing.assert_allclose(run.rounds.per_device(run.devices, joules), horizon.parts_j[part])
        np.testing.assert_allclose(sum(run.parts_j.values()), run.rounds.energy_j)


def test_the_gap_is_the_duals_and_holds_for_every_scheduler():
    """In round 1 all queues are empty, so all schedulers face the same problem: no device is below the bound."""
    values, bounds = {}, set()
    for name in SCHEDULERS:
        play = Play(replace(start("small-cell"), devices=40, rounds=1, scheduler=name))
        play.advance()
        values[name], _ = play.rounds[0].objective, bounds.add(play.rounds[0].lower_bound)
    assert len(bounds) == 1
    assert values["dual"] == min(values.values())
    assert values["round-robin"] > values["lyapunov"] >= bounds.pop()


def test_settings_of_presets_are_the_presets():
    for begin in STARTS:
        state = start(begin)
        changed = {"power_coefficient"} if begin == "paper-kappa" else set()
        assert {state.cell, begin} <= {*PRESETS, "paper-kappa"}
        for field in fields(PRESETS[state.cell]):
            if field.name not in changed:
                assert getattr(state.radio, field.name) == getattr(PRESETS[state.cell], field.name)


@settings(max_examples=60)
@given(st.data())
def test_an_address_holds_every_setting(data):
    drawn = {}
    for control in CONTROLS:
        if control.scale == "integer":
            most = 200 if control.name == "rounds" else int(control.most)
            drawn[control.name] = data.draw(st.integers(int(control.least), most))
        else:
            drawn[control.name] = data.draw(st.floats(control.least, control.most))
    for name, words in (("cell", PRESETS), ("scheduler", SCHEDULERS), ("gamma", ("inverse", "constant"))):
        drawn[name] = data.draw(st.sampled_from(list(words)))
    state = Settings(**{**drawn, "samples": float(drawn["samples"]), "hard_budget": data.draw(st.booleans())})
    assert Settings.from_query(dict(parse_qsl(state.query()))) == state


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"relative_v": "many"}, "Relative V is 'many', but must be a number."),
        ({"relative_v": "nan"}, "Relative V is nan, but must be from 0.001 to 1e+06."),
        ({"devices": "2.5"}, "Devices is '2.5', but must be an integer."),
        ({"devices": "0"}, "Devices is 0, but must be from 1 to 300."),
        ({"devices": "inf"}, "Devices is 'inf', but must be an integer."),
        ({"bandwidth_hz": "-1"}, "Band is -0.001, but must be from 10 to 100000 kHz."),
        ({"scheduler": "best"}, "scheduler is 'best', but must be one of lyapunov"),
        ({"cell": "moon"}, "cell is 'moon'"),
        ({"hard_budget": "perhaps"}, "hard_budget is 'perhaps', but must be 1 or 0."),
        ({"color": "red"}, "setting is 'color', but must be one of cell"),
        ({"devices": "300", "rounds": "400"}, "rounds is 400, but must be at most 333 with 300 devices."),
    ],
)
def test_bad_values_are_one_sentence(query, sentence):
    with pytest.raises(ConfigError) as refused:
        Settings.from_query(query)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    "state",
    [
        small(),
        small(scheduler="round-robin", count=3, seed=7),
        replace(start("5g-phone"), devices=12, rounds=8, min_cpu_hz=0.0, tail_energy_j=0.2, min_power_dbm=-60.0),
        replace(start("nb-iot"), devices=12, rounds=8, scheduler="dual", relative_v=0.3, radius_m=700.0),
        replace(start("small-cell"), devices=12, rounds=8, gamma="constant", hard_budget=True),
    ],
)
def test_what_is_taken_home_gives_the_same(state, tmp_path, monkeypatch, capsys):
    play = Play(state)
    play.advance()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(python_code(state), names)
    chosen = [np.flatnonzero(one.decision.chosen).tolist() for one in play.rounds]
    assert [one.devices.tolist() for one in names["result"].rounds] == chosen
    assert f"{len(chosen[0])} devices" in printed.getvalue()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "cell.json").write_text(problem_file(state))
    commands = [line for line in command_lines(state).splitlines() if line.startswith("kfl ")]
    assert main([*commands[0].split()[1:], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [[int(row["id"][1:]) for row in one["devices"]] for one in told["rounds"]] == chosen
    assert [row["share"] for row in told["rounds"][-1]["devices"]] == play.rounds[-1].decision.share[
        chosen[-1]
    ].tolist()


def test_the_training_command_is_one_that_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    state = small(rounds=2, bandwidth_hz=1e6, scheduler="dual", relative_v=2.0, hard_budget=True)
    words = command_lines(state).splitlines()[-1].split()[1:]
    assert main([*words, "--widths", "8", "--no-baseline", "--no-models", "--out", "run"]) == 0
    from kfl.runfolder import load_experiment

    experiment = load_experiment(tmp_path / "run")
    assert (experiment.scheduler, experiment.radio, experiment.hard_budget) == (Dual(relative_v=2.0), state.radio, True)


def test_the_page_shows_what_was_scheduled():
    state = replace(start("small-cell"), devices=30, rounds=5, relative_v=100.0)
    play = Play(state)
    play.advance()
    counts = [int(one.decision.chosen.sum()) for one in play.rounds]
    shown = {label: value for label, value, _ in cards(play, play.run)}
    assert shown["Scheduled"] == f"{np.mean(counts):.1f} of 30"
    page = compose_play(play)
    assert page.sections[0].title == "Participation over 5 rounds"
    heat = page.figures["schedule"]["views"]["By number"]["data"][0]
    outcome = np.array([[int(digit) for digit in row] for row in heat["z"]["digits"]])
    np.testing.assert_array_equal(outcome, np.stack([one.outcome for one in play.rounds], axis=1))
    assert (outcome == 0).sum(axis=0).tolist() == counts
    assert heat["text"]["labels"][:2] == ["scheduled", "not chosen"]
    gap = page.figures["gap"]["views"]["Value"]["data"]
    assert gap[0]["y"] == pytest.approx([one.objective for one in play.rounds], rel=1e-4)
    assert gap[1]["y"] == pytest.approx([one.lower_bound for one in play.rounds], rel=1e-4)
    reasons = page.figures["cell"]["views"]["Rounds"]["data"][0]["text"]
    assert f"<br>scheduled: {(outcome[0] == 0).sum()}" in reasons[0]


def test_sliders_that_contradict_each_other_are_no_error():
    preset = PRESETS["paper-mnist-modem"]
    state = start("paper-mnist-modem")
    assert replace(state, min_cpu_hz=0.0).radio.min_cpu_hz is None
    assert replace(state, min_cpu_hz=2e9).radio.min_cpu_hz == min(preset.cpu_frequencies_hz)
    assert replace(state, min_power_dbm=25.0).radio.min_power_dbm is None
    assert replace(state, min_power_dbm=-60.0).radio.min_power_dbm is None
    assert (state.radio.tail_s, replace(state, tail_energy_j=0.5).radio.tail_s) == (preset.tail_s, 0.0)
    assert replace(state, tail_energy_j=0.5).radio.connect_energy_j == 0.5
    with pytest.raises(ConfigError, match="Amplifier is 0, but must be from 1 to 100 %"):
        replace(state, amplifier_efficiency=0.0)
    with pytest.raises(ConfigError, match=r"Circuits is -1, but must be from 0 or 0\.1 to 10000 mW"):
        replace(state, circuit_power_w=-0.001)


def test_the_page_shows_the_energy_of_whole_devices_by_part():
    state = replace(start("paper-mnist-modem"), devices=12, rounds=4, scheduler="dual")
    play = Play(state)
    play.advance()
    page = compose_play(play)
    assert "tail" in page.sentence
    parts = {trace["name"]: trace["y"][-1] for trace in page.figures["parts"]["views"]["So far"]["data"]}
    assert parts == {name: pytest.approx(joules.sum(), rel=1e-3) for name, joules in play.run.parts_j.items()}
    printed = Play(small())
    printed.advance()
    assert "parts" not in compose_play(printed).figures


def test_no_device_and_one_device_are_pages_too():
    for state in (small(deadline_s=0.1), small(devices=1, rounds=1), small(payload_bits=1e8, bandwidth_hz=1e4)):
        play = Play(state)
        play.advance()
        assert {"schedule", "cell", "energy"} <= set(compose_play(play).figures)
    none = Play(small(deadline_s=0.1))
    none.advance()
    assert "12 devices can never take part" in compose_play(none).sentence


@pytest.fixture
def server():
    with playground_server(0) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request(method, f"/{server.key}{path}", headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def test_the_server(server):
    assert server.server_address[0] == "127.0.0.1"
    status, page = ask(server, "/?devices=9&rounds=3")
    assert status == 200
    assert 'id="devices" value="9"' in page
    assert "http://" not in page.partition("<script>")[0]  # nothing comes from anywhere else
    status, text = ask(server, "/answer.json?devices=9&rounds=3&scheduler=dual")
    answer = json.loads(text)
    assert (status, answer["done"]) == (200, True)
    assert answer["query"] == "cell=paper-mnist&scheduler=dual&devices=9&rounds=3"
    assert set(answer["figures"]) == {"schedule", "participants", "cell", "shares", "energy", "pace", "gap"}
    assert json.loads(ask(server, "/cell.json?devices=9&rounds=3")[1])["rounds"] == 3


def test_the_server_refuses_what_is_not_for_it(server):
    assert ask(server, "/", host="example.com")[0] == 403
    assert ask(server, "/answer.json", host="kfl.example.com:8379")[0] == 403
    assert ask(server, "/", method="POST")[0] == 405
    assert ask(server, "/../../etc/passwd")[0] == 404
    status, text = ask(server, "/answer.json?relative_v=lots")
    assert (status, json.loads(text)["problem"]) == (200, "Relative V is 'lots', but must be a number.")
    status, text = ask(server, f"/cell.json?relative_v={'9' * 5000}")
    assert (status, "too long" in json.loads(text)["problem"]) == (400, True)
    status, page = ask(server, "/?relative_v=<script>alert(1)</script>")
    assert status == 200
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page


def test_a_long_horizon_comes_in_parts_and_an_address_of_earlier_pages_is_understood(server):
    path = "/answer.json?devices=60&rounds=300&scheduler=dual&payload_bits=2e7"
    answers = []
    while not answers or not answers[-1]["done"]:
        answers.append(json.loads(ask(server, path)[1]))
        assert len(answers) < 200
    assert len(answers) > 1
    assert answers[0]["news"].endswith("of 300 rounds scheduled …")
    assert json.loads(ask(server, path + "&round=250")[1]) == answers[-1]
