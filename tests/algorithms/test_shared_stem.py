"""The shared stem beyond its twin: which layers, what is refused, error feedback, robust rules, bits as sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kfl
from kfl.algorithms import LgFedAvg, SharedStem, Upload, privacy_cost
from kfl.algorithms.quantize import pack, unpack
from kfl.algorithms.sums import Sums, summation_of
from kfl.core.errors import ConfigError, ModelError, StoppedError
from kfl.engine import RoundKey
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from kfl.models.network import shared_layers

CNN = ("cnn", (64, 128), 6, (3, 32, 32), 10, 0)
MLP = ("mlp", (64, 128), 6, (1, 28, 28), 10, 0)


def stem_of(models, algorithm):
    profile = models.profiles[0]
    return [layer.name for layer in algorithm.stem(models.shared.stem, profile.classes, profile.features)]


def test_the_papers_cnn_shares_its_convolutions():
    models = fleet_from_name(*CNN)
    assert [(layer.name, layer.values) for layer in models.shared.stem] == [("body.0", 456), ("body.3", 2416)]
    assert stem_of(models, SharedStem(bits_per_value=1)) == ["body.0", "body.3"]
    assert stem_of(models, SharedStem(bits_per_value=7)) == ["body.0", "body.3"]  # 20,232 of 20,480 bits
    assert stem_of(models, SharedStem(bits_per_value=8)) == ["body.0"]
    assert stem_of(models, SharedStem(bits_per_value=32, budget_bits=91_904)) == ["body.0", "body.3"]
    assert [layer.values for layer in models.shared.head] == [650]


def test_equal_networks_share_as_much_of_the_body_as_fits():
    models = fleet_from_name("resnet8-8", None, 4, (3, 32, 32), 10, 0)
    layers = models.shared.stem
    deep = stem_of(models, SharedStem(budget_bits=10**9))
    assert deep == [layer.name for layer in layers] and len(deep) > 5
    some = stem_of(models, SharedStem())
    assert some == deep[: len(some)] and 1 < len(some) <= len(deep)
    # Running statistics are not parameters: they stay on the device.
    assert not any("running" in name for layer in layers for name, _ in layer.arrays)


def test_a_layer_of_which_only_a_part_agrees_is_not_shared_and_ends_the_stem():
    def model(width, channels=4):
        body = nn.Sequential(
            nn.Linear(5, channels), nn.ReLU(), nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, 3)
        )
        return SplitModel(body, nn.Linear(3, 2))

    shared = shared_layers([model(6), model(7)])
    assert [layer.name for layer in shared.stem] == ["body.0"]  # the last bias agrees too, but nothing below it
    assert shared_layers([model(6), model(6, channels=5)]).stem == ()
    assert len(shared_layers([model(6), model(6)]).stem) == 3


def test_networks_with_nothing_to_share_are_refused_in_words_that_name_what_would_fit():
    models = fleet_from_name(*MLP)
    with pytest.raises(
        ModelError, match=r"401,920 values, 1,607,744 bits .* may have 20,480.*--algorithm.budget-bits 1607744"
    ):
        SharedStem().check_models(models)
    SharedStem(bits_per_value=1, budget_bits=401_984).check_models(models)
    widths = [
        SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, w), nn.Linear(w, 3)), nn.Linear(3, 2)) for w in (5, 6)
    ]
    different = fleet_from_modules(widths, 2, (4,), 2)
    with pytest.raises(ModelError, match="differ in shape from device to device"):
        SharedStem().check_models(different)
    with pytest.raises(ModelError, match="first layers of the networks, but these differ"):
        LgFedAvg(share="stem").check_models(different)
    LgFedAvg(share="head").check_models(different)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pull": "magnet"}, "one of none, random, simplex, knowledge"),
        ({"bits_per_value": 1, "aggregation": "median"}, "signs alone leave a median nothing to choose from"),
        ({"bits_per_value": 1, "aggregation": "trimmed"}, "mean or clip"),
        ({"noise_multiplier": 1.0, "clip_norm": 1.0, "pull": "knowledge"}, "class means would be sent without noise"),
    ],
)
def test_what_does_not_make_sense_is_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SharedStem(**options).validate()


@settings(max_examples=40)
@given(
    st.integers(1, 12), st.lists(st.lists(st.floats(-5, 5, width=32), min_size=6, max_size=6), min_size=1, max_size=8)
)
def test_error_feedback_loses_nothing_over_rounds(bits, updates):
    """What was sent in all rounds and what is kept at the end are together what was to be sent."""
    kept, arrived = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for update in updates:
        wanted = torch.tensor(update, dtype=torch.float64) + kept
        got = unpack(pack(wanted, [4, 2], bits), [4, 2], bits)
        kept, arrived = wanted - got, arrived + got
    torch.testing.assert_close(arrived + kept, torch.tensor(updates, dtype=torch.float64).sum(0), rtol=0, atol=1e-4)


def test_a_device_keeps_what_quantisation_took(mixed_toy):
    algorithm, engine, seed = SharedStem(budget_bits=2000), mixed_toy.engine, mixed_toy.seed
    message = algorithm.broadcast(algorithm.server_init(engine, seed))
    state = algorithm.device_init(engine, 0, seed)
    (once,), (_first,) = algorithm.local_update(message, [0], [state], engine, RoundKey(seed, 0))
    again = {**once, "feedback/stem": torch.zeros_like(once["feedback/stem"])}
    (_,), (second,) = algorithm.local_update(message, [0], [once], engine, RoundKey(seed, 1))
    (_,), (without,) = algorithm.local_update(message, [0], [again], engine, RoundKey(seed, 1))
    assert once["feedback/stem"].abs().max() > 0
    assert not torch.equal(second.arrays["scales"], without.arrays["scales"])
    assert set(algorithm.predictor({}, once)) == set(engine.initial(0, seed))


def updates(algorithm, server, rows):
    sizes = [value.numel() for value in server.values()]
    return [
        Upload(k, {**pack(torch.tensor(row), sizes, algorithm.bits_per_value), "samples": torch.tensor(10.0).double()})
        for k, row in enumerate(rows)
    ]


@pytest.mark.parametrize("rule", ["mean", "clip", "median", "trimmed"])
def test_robust_rules_bound_what_one_liar_can_do(rule):
    server = {"body.0.weight": torch.zeros(2, 2), "body.0.bias": torch.zeros(2)}
    algorithm = SharedStem(bits_per_value=32, aggregation=rule)
    honest = np.random.default_rng(0).normal(1.0, 0.1, size=(6, 6)).astype(np.float32).tolist()
    uploads = updates(algorithm, server, [*honest, [1e6] * 6])
    after, rejected = algorithm.aggregate(server, uploads, engine=None, key=None)
    moved = torch.cat([value.flatten() for value in after.values()])
    assert rejected == []
    if rule == "mean":
        assert float(moved.min()) > 1e5
    else:
        low, high = np.min(honest), np.max(honest)
        assert bool((moved >= min(low, 0)).all()) and bool((moved <= 1.2 * high).all())


def test_a_scale_that_would_overflow_is_refused():
    server = {"body.0.weight": torch.zeros(4)}
    algorithm = SharedStem(bits_per_value=4)
    good, bad = updates(algorithm, server, [[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    bad = Upload(1, {**bad.arrays, "scales": torch.tensor([3e38])})
    after, rejected = algorithm.aggregate(server, [good, bad], engine=None, key=None)
    assert [(one.device, one.code) for one in rejected] == [(1, "not_finite")]
    alone, _ = algorithm.aggregate(server, [good], engine=None, key=None)
    assert torch.equal(after["body.0.weight"], alone["body.0.weight"])
    assert bool(torch.isfinite(after["body.0.weight"]).all())


def test_a_message_for_another_network_is_refused_in_words(mixed_toy):
    algorithm, engine, seed = SharedStem(budget_bits=2000), mixed_toy.engine, mixed_toy.seed
    message = dict(algorithm.broadcast(algorithm.server_init(engine, seed)))
    message["codes"] = message["codes"][:-3]
    with pytest.raises(ModelError, match="names other networks than this device has"):
        algorithm.local_update(message, [0], [algorithm.device_init(engine, 0, seed)], engine, RoundKey(seed, 0))


@pytest.mark.parametrize("bits", [1, 4, 32])
@pytest.mark.parametrize("pull", ["random", "knowledge"])
def test_bits_are_those_of_what_is_sent(bits, pull, mixed_toy):
    """The bytes of an upload without the number of samples, which is sent once; means of held classes alone."""
    algorithm = SharedStem(bits_per_value=bits, bits_down=5, budget_bits=2000, pull=pull)
    engine, seed = mixed_toy.engine, mixed_toy.seed
    message = algorithm.broadcast(algorithm.server_init(engine, seed))
    state = algorithm.device_init(engine, 2, seed)
    _, (upload,) = algorithm.local_update(message, [2], [state], engine, RoundKey(seed, 0))

    def size(arrays, names):
        return sum(8 * arrays[name].numel() * arrays[name].element_size() for name in names if name in arrays)

    server = algorithm.server_init(engine, seed)
    (cost,) = algorithm.costs([engine.profile(2)], server, real_work=False)
    up, down = cost.bits_up, cost.bits_down
    stem = ("scales", "codes", "values")
    held = 2 * engine.features * 32 + engine.classes if pull == "knowledge" else 0
    assert up == size(upload.arrays, stem) + held
    assert down == size(message, (*stem, "knowledge")) + (engine.classes if pull == "knowledge" else 0)


def test_it_runs_resumes_and_is_charged_in_a_simulation(tmp_path):
    small = kfl.Experiment(
        devices=8,
        rounds=4,
        model="cnn",
        widths=(8, 12),
        samples_per_device=12,
        algorithm=SharedStem(),
        scheduler=kfl.Uniform(3),
    )
    whole = kfl.run(small, tmp_path / "whole")
    assert whole.summary["bits_up"] == 4 * 3 * (2572 * 4 + 4 * 32)
    asked = iter([False, True])
    with pytest.raises(StoppedError):
        kfl.run(small, tmp_path / "half", should_stop=lambda: next(asked))
    resumed = kfl.resume(tmp_path / "half")  # error feedback is part of what a checkpoint keeps
    assert [log.accuracy for log in resumed.rounds] == [log.accuracy for log in whole.rounds]


def test_a_broadcast_says_how_many_layers_the_stem_has_and_knowledge_only_where_there_is_some(toy):
    layers = {"body.0.weight": torch.ones(2, 3), "body.0.bias": torch.ones(2), "body.2.0.weight": torch.ones(2, 2)}
    message = SharedStem(bits_down=32).broadcast(layers)
    assert set(message) == {"depth", "values"} and int(message["depth"]) == 2
    assert message["values"].tolist() == [1.0] * 12
    pulled = SharedStem(pull="knowledge", budget_bits=10**6)
    server = pulled.server_init(toy.engine, toy.seed)  # equal networks: both layers of the body
    assert int(pulled.broadcast(server)["depth"]) == 2
    assert {"knowledge", "known"} <= set(pulled.broadcast(server))
    assert not server["known"].any() and server["knowledge"].shape == (4, 5)
    rows, known = pulled.class_vectors(server)
    assert rows is server["knowledge"] and known is server["known"]
    assert SharedStem().class_vectors(SharedStem().server_init(toy.engine, toy.seed)) is None


@pytest.mark.parametrize("spoil", ["codes", "scales", "fewer codes", "more scales"])
def test_every_array_of_a_message_must_fit(spoil, mixed_toy):
    algorithm, engine, seed = SharedStem(budget_bits=2000), mixed_toy.engine, mixed_toy.seed
    message = dict(algorithm.broadcast(algorithm.server_init(engine, seed)))
    if spoil in message:
        del message[spoil]
    elif spoil == "fewer codes":
        message["codes"] = message["codes"][:-1]
    else:
        message["scales"] = torch.cat([message["scales"], torch.ones(1)])
    with pytest.raises(ModelError, match="The stem of 49 values that this network begins with is not the one"):
        algorithm.local_update(message, [0], [algorithm.device_init(engine, 0, seed)], engine, RoundKey(seed, 0))


@pytest.mark.parametrize(
    ("clip", "update", "leaves"),
    [
        (None, [30.0, -40.0], [30.0, -40.0]),
        (5.0, [30.0, -40.0], [3.0, -4.0]),
        (0.05, [0.3, -0.4], [0.03, -0.04]),
        (0.5, [0.3, -0.4], [0.3, -0.4]),
        (2.0, [0.3, -0.4], [0.3, -0.4]),
        (2.0, [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_an_update_is_shortened_to_the_norm_that_is_allowed_and_never_made_longer(clip, update, leaves):
    exact, key = torch.tensor(update, dtype=torch.float64), RoundKey(3, 1)
    found = SharedStem(clip_norm=clip)._guarded(exact, 2, key)
    torch.testing.assert_close(found, torch.tensor(leaves, dtype=torch.float64), rtol=1e-12, atol=0)
    if clip is not None:
        for multiplier in (0.3, 1.0):
            noisy = SharedStem(clip_norm=clip, noise_multiplier=multiplier)._guarded(exact, 2, key)
            # Only the address of the draw is shared with the algorithm.
            draw = torch.Generator().manual_seed(key.secret_seed("privacy noise", 2))
            noise = torch.randn(2, generator=draw, dtype=torch.float64)
            torch.testing.assert_close(noisy, found + 2 * clip * multiplier * noise, rtol=1e-12, atol=0)


LAYER = {"body.0.weight": torch.tensor([10.0, 20.0])}
"""A stem of two values."""


def sent(rows, samples, knowledge=None):
    """Updates of that stem as they are, with so many samples behind them; class means next to them where given."""
    uploads = []
    for device, (row, count) in enumerate(zip(rows, samples, strict=True)):
        arrays = {"values": torch.tensor(row), "samples": torch.tensor(count, dtype=torch.float64)}
        if knowledge is not None:
            arrays |= {"means": torch.tensor(knowledge[device][0]), "counts": torch.tensor(knowledge[device][1])}
        uploads.append(Upload(device, arrays))
    return uploads


@pytest.mark.parametrize(
    ("rule", "rows", "samples", "moved"),
    [
        ("mean", [[1.0, 0.0], [4.0, 8.0]], [3, 1], [1.75, 2.0]),
        ("mean", [[1.0, 0.0]], [1], [1.0, 0.0]),
        ("mean", [[1.0, 0.0], [4.0, 8.0]], [1, 0], [1.0, 0.0]),
        ("mean", [[1.0, 0.0], [4.0, 8.0]], [0, 0], [0.0, 0.0]),
        ("mean", [], [], [0.0, 0.0]),
        ("median", [[1.0, 0.0], [2.0, 5.0], [9.0, 1.0], [99.0, 99.0]], [1, 1, 7, 0], [2.0, 1.0]),
        ("trimmed", [[1.0, 0.0], [2.0, 5.0], [9.0, 1.0], [99.0, 99.0]], [1, 1, 7, 0], [2.0, 1.0]),
        ("clip", [[3.0, 4.0], [0.0, 2.0], [0.0, 900.0]], [1, 1, 1], [1.0, 11 / 3]),
    ],
)
def test_the_stem_moves_by_what_the_rule_makes_of_updates(rule, rows, samples, moved):
    """An update with no samples behind it has no say in any rule; `clip` measures from zero, radius 5."""
    algorithm = SharedStem(bits_per_value=32, aggregation=rule)
    after, rejected = algorithm.aggregate(LAYER, sent(rows, samples), engine=None, key=None)
    assert rejected == [] and set(after) == set(LAYER)
    torch.testing.assert_close(after["body.0.weight"], LAYER["body.0.weight"] + torch.tensor(moved))


@pytest.mark.parametrize(
    ("rule", "trim", "mean"),
    [("mean", 0.25, 15.0), ("median", 0.25, 3.0), ("trimmed", 0.2, 4.0), ("trimmed", 0.3, 3.0)],
)
def test_knowledge_beside_the_stem_goes_by_the_same_rule_and_is_kept_where_nobody_reports(rule, trim, mean):
    server = {**LAYER, "knowledge": torch.tensor([[7.0], [8.0]]), "known": torch.tensor([True, True])}
    reported = [([[value], [0.0]], [1, 0]) for value in (1.0, 2.0, 3.0, 7.0, 62.0)]
    algorithm = SharedStem(bits_per_value=32, pull="knowledge", aggregation=rule, trim=trim)
    uploads = sent([[1.0, 2.0]] * 5, [4] * 5, reported)
    after, rejected = algorithm.aggregate(server, uploads, engine=None, key=None)
    assert rejected == [] and after["body.0.weight"].tolist() == [11.0, 22.0]
    assert after["knowledge"].tolist() == [[mean], [8.0]] and after["known"].tolist() == [True, True]
    assert (summation_of(algorithm) is not None) == (rule == "mean")


@pytest.mark.parametrize(
    ("scale", "codes"), [(3e38, 0b0000_0111), (3e38, 0b1111_1000), (3e38, 0b1111_0000)], ids=["down", "up", "both"]
)
def test_a_scale_that_overflows_either_way_is_refused(scale, codes):
    algorithm = SharedStem(bits_per_value=4)
    bad = {"scales": torch.tensor([scale]), "codes": torch.tensor([codes], dtype=torch.uint8)}
    upload = Upload(1, {**bad, "samples": torch.tensor(3.0).double()})
    after, rejected = algorithm.aggregate(LAYER, [upload], engine=None, key=None)
    assert [(one.device, one.code, one.facts) for one in rejected] == [(1, "not_finite", {"array": "body.0.weight"})]
    assert after["body.0.weight"].equal(LAYER["body.0.weight"])


@pytest.mark.parametrize(("samples", "moved"), [(0.0, 0.0), (0.5, 6.0), (1.0, 3.0), (6.0, 0.5)])
def test_sums_move_the_stem_by_the_mean_or_not_at_all(samples, moved):
    sums = Sums({"body.0.weight": torch.tensor([3.0, -3.0]).double()}, {"samples": torch.tensor(samples).double()})
    summation = summation_of(SharedStem())
    assert summation.shapes(LAYER) == ({"body.0.weight": (2,)}, {"samples": ()})
    assert summation.apply(LAYER, sums)["body.0.weight"].tolist() == [10.0 + moved, 20.0 - moved]


def test_noise_on_updates_protects_the_training_as_well_as_what_is_sent():
    algorithm = SharedStem(clip_norm=0.5, noise_multiplier=4.0)
    algorithm.validate()
    cost = privacy_cost(algorithm, 3, [2] * 5)
    assert cost.epsilon == cost.epsilon_with_training < np.inf
