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
from kfl.report.playground import Play, Settings, playground_server
from kfl.report.playground._page import cards, command_lines, compose_play, problem_file, python_code
from kfl.report.playground._settings import CONTROLS, STARTS, start
from kfl.scheduling import SCHEDULERS, Dual, schedule
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
        if not np.isnan(theirs.objective):
            assert mine.objective == theirs.objective
    np.testing.assert_allclose(play.compute_j, horizon.compute_energy_j)
    np.testing.assert_allclose(play.upload_j, horizon.upload_energy_j)
    assert play.participation_count.tolist() == horizon.participation_count.tolist()
    if horizon.parts_j is not None:
        for part, joules in play.parts_j.items():
            np.testing.assert_allclose(joules, horizon.parts_j[part])
        np.testing.assert_allclose(sum(play.parts_j.values()), play.compute_j + play.upload_j)


def test_the_gap_is_the_duals_and_holds_for_every_scheduler():
    """In round 1 all queues are empty, so all schedulers face the same problem: nobody is below the bound."""
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
        if control.scale == "whole":
            most = {"rounds": 200, "round": drawn.get("rounds", 0)}.get(control.name, int(control.most))
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
        ({"devices": "2.5"}, "Devices is '2.5', but must be a whole number."),
        ({"devices": "0"}, "Devices is 0, but must be from 1 to 300."),
        ({"devices": "inf"}, "Devices is 'inf', but must be a whole number."),
        ({"bandwidth_hz": "-1"}, "Band is -0.001, but must be from 10 to 100000 kHz."),
        ({"scheduler": "best"}, "scheduler is 'best', but must be one of lyapunov"),
        ({"cell": "moon"}, "cell is 'moon'"),
        ({"hard_budget": "perhaps"}, "hard_budget is 'perhaps', but must be 1 or 0."),
        ({"colour": "red"}, "setting is 'colour', but must be one of cell"),
        ({"rounds": "9", "round": "10"}, "Round shown is 10, but must be at most the horizon, 9."),
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
        replace(start("nb-iot"), devices=12, rounds=8, scheduler="dual", relative_v=0.3, radius_m=700.0, round=4),
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
    assert [one.devices.tolist() for one in names["horizon"].rounds] == chosen
    assert f"{len(chosen[state.round - 1])} devices" in printed.getvalue()

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


def test_the_page_says_what_was_played():
    state = replace(start("small-cell"), devices=30, rounds=5, round=3, relative_v=100.0)
    play = Play(state)
    play.advance()
    one = play.rounds[2]
    shown = {label: value for label, value, _ in cards(play, 2)}
    assert shown["scheduled in round 3"] == f"{one.decision.chosen.sum()} of 30"
    assert shown["gap to the bound"] == f"{one.gap:.3g}"
    content = compose_play(play, state)
    assert "5 rounds" in content.html
    assert all(
        f'role="img" aria-label="{word}' in content.html for word in ("Round 3: ", "Shares from", "After 5 rounds")
    )


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


def test_the_page_shows_where_the_joules_of_whole_devices_went():
    state = replace(start("paper-mnist-modem"), devices=12, rounds=4, scheduler="dual")
    play = Play(state)
    play.advance()
    content = compose_play(play, state)
    assert "Where the energy went: tail" in content.html and "Upload time: " in content.html
    bars = content.figures["shares"]["views"]["Energy"]["data"]
    joules = {trace["name"]: sum(trace["y"]) for trace in bars}
    one = play.rounds[0]
    assert joules == {name: pytest.approx(part.sum(), rel=1e-3) for name, part in one.parts_j.items() if part.any()}
    by_part = content.figures["energy"]["views"]["By part"]["data"]
    assert sum(trace["y"][-1] for trace in by_part) == pytest.approx((play.compute_j + play.upload_j).sum(), rel=1e-3)
    assert list(content.figures["shares"]["views"]) == ["Share", "Power", "Energy", "Time", "Clock"]
    printed = Play(small())
    printed.advance()
    assert list(compose_play(printed, small()).figures["shares"]["views"]) == ["Share", "Power", "Energy"]


def test_nobody_and_one_device_are_pages_too():
    """Nobody can finish: everything is empty, and the page still has words for it."""
    for state in (small(deadline_s=0.1), small(devices=1, rounds=1), small(payload_bits=1e8, bandwidth_hz=1e4)):
        play = Play(state)
        play.advance()
        assert "<h2" in compose_play(play, state).html
    nobody = Play(small(deadline_s=0.1))
    nobody.advance()
    html = compose_play(nobody, nobody.settings).html
    assert "12 devices can never take part" in html


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
    assert set(answer["figures"]) == {"map", "shares", "energy", "budget", "gap", "count-chart", "when"}
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


def test_a_long_horizon_comes_in_parts_and_a_look_at_another_round_costs_nothing(server):
    path = "/answer.json?devices=60&rounds=300&scheduler=dual&payload_bits=2e7"
    answers = []
    while not answers or not answers[-1]["done"]:
        answers.append(json.loads(ask(server, path)[1]))
        assert len(answers) < 200
    assert len(answers) > 1
    assert answers[0]["news"].endswith("of 300 rounds played …")
    other = json.loads(ask(server, path + "&round=250")[1])
    assert other["done"]
    assert "Round 250" in other["html"]
