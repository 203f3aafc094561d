"""Configurations that are almost right: each works or is refused in one sentence that names a field."""

import random
import tomllib
from dataclasses import fields, replace

import pytest

import kfl
from kfl.algorithms import ALGORITHMS, FedKd
from kfl.core.config import dump_toml
from kfl.core.errors import ConfigError, KflError
from kfl.experiment.faults import Faults
from kfl.models import PAPER_WIDTHS
from kfl.scheduling import SCHEDULERS
from kfl.simulation import build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless import PRESETS
from tests.reference.toy import toy_data

STRANGE = (-1, 0, 1, 2, 10**20, -(10**9), 0.5, -0.5, 1e308, 1e-308, float("nan"), float("inf"), "", "none", "auto")
STRANGE += (
    "kfl",
    "x" * 300,
    "é\u202e",
    True,
    False,
    [],
    [1, 2],
    ["a"],
    [[]],
    [-1.0],
    {},
    {"name": "kfl"},
    {"a": {"b": 1}},
)
CASES_OF_VALUES, CASES_OF_TEXT = 900, 500


def some_experiment(draw: random.Random) -> kfl.Experiment:
    """A valid experiment, small enough to be played."""
    kind = ALGORITHMS[draw.choice(list(ALGORITHMS))]
    algorithm = FedKd(proxy_per_class=5) if kind is FedKd else kind(**{"local_steps": 2} if kind.trains else {})
    return kfl.Experiment(
        devices=draw.choice((4, 6)),
        rounds=2,
        seed=draw.randrange(5),
        widths=(8,) if kind.needs_equal_models else draw.choice(((8,), (6, 9))),
        split=draw.choice(("shards", "iid", "dirichlet")),
        dirichlet_alpha=5.0,
        algorithm=algorithm,
        scheduler=SCHEDULERS[draw.choice(list(SCHEDULERS))](),
        radio=draw.choice(("none", *PRESETS)),
        faults=draw.choice((Faults(), Faults(late=0.3, schedule=("outage:1:all",)))),
        hard_budget=draw.random() < 0.5,
    )


def places(table, path=()):
    """Every field of a table, nested ones too, and the tables themselves."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def with_one_strange_value(table, draw):
    path = draw.choice(list(places(table)))
    inner = table
    for key in path[:-1]:
        inner = inner[key]
    way = draw.randrange(5)
    if way == 0:
        inner[path[-1] + draw.choice(("x", "_", "s"))] = inner[path[-1]]
    elif way == 1:
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw.choice(STRANGE)
    return table


@pytest.fixture(scope="module")
def data():
    return toy_data(240, (5,), noise=1.0)


def playable(experiment: kfl.Experiment) -> bool:
    """Whether a mutation has left the sizes small; what is huge is a matter of memory and time, not of sense."""
    algorithm, widths = experiment.algorithm, experiment.widths or PAPER_WIDTHS
    steps = [getattr(algorithm, one.name) for one in fields(algorithm) if one.name.endswith(("_steps", "_epochs"))]
    return (
        experiment.devices <= 20
        and max(widths) <= 64
        and len(widths) <= 20
        and all(count is None or count <= 20 for count in steps)
        and ":" not in experiment.dataset + experiment.model
    )


def play(experiment, data):
    fleet = SimulatedFleet(build_world(experiment, dataset=data))
    state, log = play_round(fleet, begin(fleet))
    assert state.round == 1 and 0 <= sum(log.share) <= 1 + 1e-9
    return log


def check(text, data, judged):
    """Read, validate, write and read again, play a round: at every step it works or says what is wrong."""
    experiment = judged(lambda: kfl.Experiment.from_toml(text))
    if isinstance(experiment, KflError):
        return "refused"
    wrong = judged(experiment.validate)
    if isinstance(wrong, KflError):
        return "refused"
    again = kfl.Experiment.from_toml(experiment.to_toml())
    assert again == experiment.resolved() or "nan" in experiment.to_toml()
    if not playable(experiment):
        return "accepted"
    played = judged(lambda: play(replace(experiment, dataset="mnist-5k"), data))
    return "refused" if isinstance(played, KflError) else "played"


def test_one_strange_value_in_a_valid_config(data, judged):
    draw = random.Random(1)
    results = []
    for _ in range(CASES_OF_VALUES):
        table = with_one_strange_value(tomllib.loads(some_experiment(draw).to_toml()), draw)
        results.append(check(dump_toml(table), data, judged))
    assert results.count("played") > CASES_OF_VALUES / 5 and results.count("refused") > CASES_OF_VALUES / 5


def test_one_mutation_of_the_text_of_a_valid_config(data, mutated, judged, tmp_path):
    draw = random.Random(2)
    results = []
    for number in range(CASES_OF_TEXT):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(broken := mutated(some_experiment(draw).to_toml().encode(), draw))
        experiment = judged(lambda path=path: kfl.Experiment.load(path))
        results.append("refused" if isinstance(experiment, KflError) else check(broken.decode(), data, judged))
        assert path.read_bytes() == broken
    assert results.count("played") > CASES_OF_TEXT / 25 and results.count("refused") > CASES_OF_TEXT / 5


def test_a_config_nested_without_end_is_refused(judged):
    for text in (
        "a = " + "[" * 100_000,
        "a." * 50_000 + "b = 1",
        "[" + "a." * 50_000 + "b]",
        "widths = " + "[" * 500 + "]" * 500,
    ):
        assert isinstance(judged(lambda text=text: kfl.Experiment.from_toml(text)), ConfigError)
