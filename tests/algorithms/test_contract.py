"""What every algorithm promises. A new one joins by being registered in ALGORITHMS."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import subprocess
import sys
import textwrap
import typing

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kfl.algorithms import ALGORITHMS, Algorithm, ArrayFormat, Rejection, Upload
from kfl.algorithms.uploads import sent_bits
from kfl.core.config import from_table, to_table
from kfl.core.errors import ConfigError, ModelError
from kfl.engine import RoundKey, Sgd, Supervised

COHORTS = [[0, 1, 3], [1, 2], [0, 3, 2]]
WEIGHTS = ("counts", "samples")
"""Names under which uploads carry how much they weigh."""

every = pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def of(toy, request):
    """The world as the algorithm of a test finds it: one may put something around each network."""
    return toy.of(request.getfixturevalue("cls")()) if "cls" in request.fixturenames else toy


@pytest.fixture(name="toy")
def own_toy(toy, request):
    return of(toy, request)


@pytest.fixture(name="mixed_toy")
def own_mixed_toy(mixed_toy, request):
    return of(mixed_toy, request)


@pytest.fixture(name="countable_toy")
def own_countable_toy(countable_toy, request):
    return of(countable_toy, request)


def equal(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **(tolerance or {"rtol": 0, "atol": 0}), msg=name)


def copy(state):
    return {name: value.clone() for name, value in state.items()}


def aggregate(algorithm, toy, server, uploads):
    """What the server makes of uploads, after round 1."""
    return algorithm.aggregate(server, uploads, engine=toy.engine, key=RoundKey(toy.seed, 1))


def charge(algorithm, toy, profile, *, real_work=False):
    """What a round costs a device."""
    return algorithm.costs([profile], algorithm.server_init(toy.engine, toy.seed), real_work=real_work)[0]


def one_round(algorithm, toy, cohort=(0, 1, 3), number=1):
    """A server that has seen a round, and what a cohort then sends."""
    seed = toy.seed
    server = algorithm.server_init(toy.engine, seed)
    states = [algorithm.device_init(toy.engine, k, seed) for k in (0, 2, 4)]
    _, uploads = algorithm.local_update(algorithm.broadcast(server), [0, 2, 4], states, toy.engine, RoundKey(seed, 0))
    server, rejected = aggregate(algorithm, toy, server, uploads)
    assert rejected == []
    before = [algorithm.device_init(toy.engine, k, seed) for k in cohort]
    after, uploads = algorithm.local_update(
        algorithm.broadcast(server), list(cohort), before, toy.engine, RoundKey(seed, number)
    )
    return server, after, uploads


@every
def test_seeds_repeat_exactly(cls, toy, play):
    algorithm = cls(batch_size=4)
    first, second = (play(algorithm, toy, COHORTS) for _ in range(2))
    equal(first.server, second.server)
    for device in first.devices:
        equal(first.devices[device], second.devices[device])
    other = play(algorithm, toy, COHORTS, seed=8)
    predictors = [algorithm.predictor(run.server, run.devices[0]) for run in (first, other)]
    assert not (cls.trains or cls.sends()) or any(
        not torch.equal(predictors[0][name], predictors[1][name]) for name in predictors[0]
    )


@every
def test_an_unscheduled_device_is_untouched_and_predicts_as_declared(cls, toy, play):
    algorithm = cls()
    start = algorithm.server_init(toy.engine, toy.seed)
    idle = algorithm.device_init(toy.engine, 4, toy.seed)
    kept, said = copy(idle), copy(algorithm.predictor(start, idle))
    after = play(algorithm, toy, [[0, 1], [1, 2, 3]])
    assert 4 not in after.devices
    equal(idle, kept)
    now = algorithm.predictor(after.server, idle)
    moved = any(not torch.equal(now[name], said[name]) for name in said)
    assert moved == (not cls.predicts_alone)


@every
def test_inputs_are_not_changed_in_place(cls, toy):
    algorithm = cls()
    server, states, uploads = one_round(algorithm, toy)
    message = algorithm.broadcast(server)
    kept = [copy(server), copy(message), *map(copy, states), *(copy(u.arrays) for u in uploads)]
    algorithm.local_update(message, [0, 1, 3], states, toy.engine, RoundKey(toy.seed, 2))
    aggregate(algorithm, toy, server, uploads)
    algorithm.predictor(server, states[0])
    now = [server, message, *states, *(u.arrays for u in uploads)]
    for before, after in zip(kept, now, strict=True):
        equal(before, after)


@every
def test_nothing_or_zero_weight_changes_nothing(cls, toy):
    algorithm = cls()
    server, _, uploads = one_round(algorithm, toy)
    equal(aggregate(algorithm, toy, server, [])[0], server)
    weights = [name for name in WEIGHTS if uploads and name in uploads[0].arrays]
    for name in weights:
        without = aggregate(algorithm, toy, server, uploads[1:])[0]
        zero = Upload(0, {**uploads[0].arrays, name: torch.zeros_like(uploads[0].arrays[name])})
        with_zero, rejected = aggregate(algorithm, toy, server, [zero, *uploads[1:]])
        assert rejected == []
        equal(with_zero, without)
        equal(aggregate(algorithm, toy, server, [zero])[0], server)


@every
def test_the_order_of_devices_does_not_matter(cls, toy):
    algorithm = cls(batch_size=4)
    server, states, uploads = one_round(algorithm, toy, (0, 1, 3))
    turned, turned_states, turned_uploads = one_round(algorithm, toy, (3, 0, 1))
    for place, other in ((0, 1), (1, 2), (2, 0)):
        equal(states[place], turned_states[other])
        if uploads:
            equal(uploads[place].arrays, turned_uploads[other].arrays)
    one, two = aggregate(algorithm, toy, server, uploads)[0], aggregate(algorithm, toy, turned, turned_uploads)[0]
    equal(one, two, rtol=1e-6, atol=1e-7)


@every
def test_a_device_alone_gets_what_it_gets_in_a_batch(cls, toy):
    algorithm = cls(batch_size=4)
    _, states, uploads = one_round(algorithm, toy, (0, 1, 3))
    for place, device in enumerate((0, 1, 3)):
        _, alone, alone_uploads = one_round(algorithm, toy, (device,))
        equal(alone[0], states[place])
        if uploads:
            equal(alone_uploads[0].arrays, uploads[place].arrays)


@every
def test_an_empty_round_passes(cls, toy):
    algorithm = cls()
    server, _, _ = one_round(algorithm, toy)
    states, uploads = algorithm.local_update(algorithm.broadcast(server), [], [], toy.engine, RoundKey(toy.seed, 5))
    assert (states, uploads) == ([], [])


@every
def test_cost_is_sane_and_grows_with_samples(cls, toy):
    algorithm = cls()
    profile = toy.engine.profile(0)
    for real_work in (False, True):
        sizes = [dataclasses.replace(profile, samples=samples) for samples in (1, 10, 500)]
        costs = [charge(algorithm, toy, size, real_work=real_work) for size in sizes]
        for cost in costs:
            assert all(math.isfinite(value) for value in dataclasses.astuple(cost))
            assert cost.flops > 0 and cost.bits_up >= 0 and cost.bits_down >= 0
        assert costs[0].flops < costs[1].flops < costs[2].flops
    printed, real = (charge(algorithm, toy, profile, real_work=flag) for flag in (False, True))
    assert real.flops > printed.flops if cls.trains else real.flops == printed.flops
    assert (real.bits_up, real.bits_down) == (printed.bits_up, printed.bits_down)


@every
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_as_printed_everybody_is_charged_the_forward_passes_of_the_local_steps(cls, steps, toy):
    """τ D C for all alike: no second model, no proxy samples, no knowledge pass."""
    if not cls.trains:
        with pytest.raises(ConfigError, match="takes no training steps"):
            cls(local_steps=steps + 6).validate()
        return
    for device in range(5):
        profile = toy.engine.profile(device)
        cost = charge(cls(local_steps=steps), toy, profile)
        assert cost.flops == steps * profile.samples * profile.model.flops


@every
def test_real_work_is_what_pytorch_counts(cls, countable_toy):
    """A multiply-add is one operation here and two in PyTorch's count. Ours is a little larger: a backward pass is
    charged as twice the forward pass, which includes the gradient of what is never trained, the inputs."""
    if not cls.trains and not cls.sends():
        pytest.skip("how often it fits depends on the samples")
    toy = countable_toy
    algorithm = cls(proxy_per_class=3) if "proxy_per_class" in {one.name for one in dataclasses.fields(cls)} else cls()
    server, _, _ = one_round(algorithm, toy)  # a server that has something to send
    state = algorithm.device_init(toy.engine, 1, toy.seed)
    message = algorithm.broadcast(server)
    with FlopCounterMode(display=False) as counter:
        algorithm.local_update(message, [1], [state], toy.engine, RoundKey(toy.seed, 1))
    counted = counter.get_total_flops() / 2
    profile = toy.engine.profile(1)
    charged = charge(algorithm, toy, profile, real_work=True).flops - algorithm.classifier_flops(profile)
    assert counted <= charged <= 1.03 * counted


@every
def test_bits_are_charged_exactly_when_something_is_sent(cls, toy):
    algorithm = cls()
    _, _, uploads = one_round(algorithm, toy)
    cost = charge(algorithm, toy, toy.engine.profile(0))
    assert bool(uploads) == (cost.bits_up > 0)


OTHER_SIZES = {
    "kfl": [
        {"bits_per_value": 5},
        {"charge": "held"},
        {"charge": "held", "bits_per_value": 7},
        {"charge": "held", "clip_norm": 1.0, "noise_multiplier": 0.5, "noise_counts": True},
    ],
    "shared-stem": [{"bits_per_value": 1}, {"bits_per_value": 32, "budget_bits": 10**6}, {"pull": "knowledge"}],
    "fedkd": [{"proxy_per_class": 3}],
}
"""Settings of algorithms in which their uploads have another size than by default."""


@every
@pytest.mark.parametrize("world", ["toy", "mixed_toy", "normalised_toy"])
def test_what_is_declared_is_what_is_sent(cls, world, request):
    """Bits that the scheduler plans with are those of the uploads: values, bits per value, masks."""
    world = request.getfixturevalue(world)
    for setting in [{}, *OTHER_SIZES.get(cls.name, [])]:
        if cls.name == "fedkd" and not setting:
            continue  # the toy's proxy set has three samples of each class
        algorithm = cls(**setting)
        own = world.of(algorithm)
        if cls.needs_equal_models and own.models.mixed:
            return
        server, _, uploads = one_round(algorithm, own)
        formats = algorithm.upload_format(server)
        for upload in uploads:
            profile = own.engine.profile(upload.device)
            assert sent_bits(upload, formats) == charge(algorithm, own, profile).bits_up, setting


def test_an_own_algorithm_sees_the_layers_of_a_network_and_their_sizes(normalised_toy):
    model = normalised_toy.engine.profile(0).model
    sizes = {layer.name: layer.values for layer in model.layers}
    assert sizes == {"body.0": 56, "body.1": 16, "body.3": 45, "head": 24}
    assert sum(sizes.values()) == model.parameters and model.state_values == model.parameters + 2 * 8 + 1


@every
def test_uploads_are_what_is_declared(cls, toy):
    """A fleet's server accepts exactly the declared arrays, so they must be exactly what is sent."""
    algorithm = cls()
    server, _, uploads = one_round(algorithm, toy)
    formats = algorithm.upload_format(server)
    assert bool(formats) == bool(uploads)
    for upload in uploads:
        sent = {name: ArrayFormat.like(array) for name, array in upload.arrays.items()}
        assert sent == {name: ArrayFormat(form.shape, form.dtype) for name, form in formats.items()}
        for name, form in formats.items():
            array = upload.arrays[name]
            if form.holds == "samples":
                assert 0 <= array <= toy.engine.profile(upload.device).samples
            elif form.holds == "counts":
                assert array.shape == (toy.engine.classes,) and bool((array >= 0).all())


@every
def test_class_vectors_have_a_row_per_class(cls, toy):
    algorithm = cls()
    server, _, _ = one_round(algorithm, toy)
    vectors = algorithm.class_vectors(server)
    if vectors is not None:
        rows, known = vectors
        assert rows.shape == (toy.engine.classes, toy.engine.features) and known.shape == rows.shape[:1]
        assert known.dtype == torch.bool


@every
def test_configuration_goes_through_a_table(cls):
    algorithm = cls(local_steps=4, learning_rate=0.025, batch_size=10) if cls.trains else cls()
    assert from_table(cls, to_table(algorithm)) == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.local_steps = 3
    algorithm.validate()
    cls().validate()


@every
def test_not_a_number_is_refused(cls):
    hints = typing.get_type_hints(cls)
    floats = [f.name for f in dataclasses.fields(cls) if float in (hints[f.name], *typing.get_args(hints[f.name]))]
    assert "learning_rate" in floats
    for name in floats:
        for value in (math.nan, math.inf, -1.0):
            with pytest.raises(ConfigError, match=name):
                cls(**{name: value}).validate()
    with pytest.raises(ConfigError, match="local_steps"):
        cls(local_steps=0).validate()


@every
def test_every_field_says_what_it_is(cls):
    """Fields are options of the command line, and their docstrings its help."""
    fields = {field.name for field in dataclasses.fields(cls)}
    own = fields & inspect.get_annotations(cls).keys()
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    documented = {
        node.target.id
        for node, following in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    assert own <= documented
    assert ALGORITHMS[cls.name] is cls and cls.__doc__


def spoil(upload: Upload, kind: str) -> Upload:
    """An upload with one thing wrong; test_uploads has all that may be wrong with an array."""
    arrays = dict(upload.arrays)
    name = next(name for name in arrays if name not in WEIGHTS)
    if kind == "nan":
        name = next(name for name in arrays if arrays[name].is_floating_point())
        arrays[name] = torch.full_like(arrays[name], math.nan)
    elif kind == "missing":
        del arrays[name]
    else:
        weight = next(name for name in arrays if name in WEIGHTS)
        arrays[weight] = torch.full_like(arrays[weight], -1.0, dtype=torch.float64)
    return Upload(upload.device, arrays)


CODES = {"nan": "not_finite", "missing": "missing_array", "negative weight": "negative_count"}


@every
@pytest.mark.parametrize("kind", CODES)
def test_bad_uploads_are_refused_and_the_rest_is_used(cls, kind, toy):
    algorithm = cls()
    server, _, uploads = one_round(algorithm, toy)
    if not uploads:
        after, rejected = aggregate(algorithm, toy, server, [Upload(3, {"anything": torch.tensor(math.nan)})])
        assert [(r.device, r.code) for r in rejected] == [(3, "nothing_expected")]
        assert cls.name in rejected[0].describe()
        equal(after, server)
        return
    if "weight" in kind and not any(name in uploads[0].arrays for name in WEIGHTS):
        return  # every report weighs the same
    bad = spoil(uploads[1], kind)
    after, rejected = aggregate(algorithm, toy, server, [uploads[0], bad, uploads[2]])
    assert [r.device for r in rejected] == [uploads[1].device]
    assert rejected[0].code == CODES[kind], rejected[0].describe()
    assert Rejection.from_dict(json.loads(json.dumps(rejected[0].to_dict()))) == rejected[0]
    equal(after, aggregate(algorithm, toy, server, [uploads[0], uploads[2]])[0])
    alone, rejected = aggregate(algorithm, toy, server, [bad])
    assert len(rejected) == 1
    equal(alone, server)


@every
def test_states_are_tensors_and_predictors_are_models(cls, toy, play):
    algorithm = cls()
    after = play(algorithm, toy, COHORTS)
    for state in (after.server, *after.devices.values()):
        assert all(isinstance(value, torch.Tensor) and not value.requires_grad for value in state.values())
    model = toy.models.initial(0, toy.seed)
    for device, state in after.devices.items():
        predictor = algorithm.predictor(after.server, state)
        assert {name: value.shape for name, value in predictor.items()} == {n: v.shape for n, v in model.items()}
        assert 0 <= toy.engine.correct([device], [predictor])[0] <= len(toy.partition.test[device])


@every
def test_it_learns(cls, toy, play):
    """Sixteen rounds with every device leave the mean training loss well below that of the start."""
    algorithm = cls()
    devices = list(range(5))
    after = play(algorithm, toy, [devices] * 16)
    start = algorithm.server_init(toy.engine, toy.seed)
    before, now = 0.0, 0.0
    for device in devices:
        x, y = toy.train(device)
        fresh = algorithm.predictor(start, algorithm.device_init(toy.engine, device, toy.seed))
        trained = algorithm.predictor(after.server, after.devices[device])
        for_fresh, for_trained = toy.engine.logits([device] * 2, [fresh, trained], x)
        before += float(torch.nn.functional.cross_entropy(for_fresh, y))
        now += float(torch.nn.functional.cross_entropy(for_trained, y))
    assert now < 0.7 * before


@every
def test_mixed_architectures_run_or_are_refused_in_words(cls, mixed_toy, toy, play):
    algorithm = cls()
    algorithm.check_models(toy.models)
    if cls.needs_equal_models:
        with pytest.raises(ModelError, match=rf"{cls.name} .* there are 3.*--widths 256"):
            algorithm.check_models(mixed_toy.models)
    else:
        algorithm.check_models(mixed_toy.models)
        assert all(not rejected for rejected in play(algorithm, mixed_toy, COHORTS).rejections)


PLAIN = {
    "local": {},
    "kfl": {"knowledge_weight": 0.0},
    "fedavg": {},
    "apfl": {"mixing": 0.0, "mixing_rate": 0.0},
    "fedkd": {"distill_steps": 0},
    "fedproto": {"prototype_weight": 0.0},
    "fedtgp": {"prototype_weight": 0.0},
    "fd": {"distill_weight": 0.0},
    "self-knowledge": {"knowledge_weight": 0.0},
    "fixed-knowledge": {"knowledge_weight": 0.0},
}
"""The settings with which an algorithm, with one device alone, is plain training. FedRep and FedGH never are."""


@pytest.mark.parametrize("name", PLAIN)
def test_one_device_alone_is_plain_training(name, toy, play):
    algorithm: Algorithm = ALGORITHMS[name](**PLAIN[name])
    start = algorithm.predictor(
        algorithm.server_init(toy.engine, toy.seed), algorithm.device_init(toy.engine, 2, toy.seed)
    )
    for number in range(3):
        (start,) = toy.engine.train([2], [start], Supervised(), Sgd(5, 0.05, 0.05, 0.9), RoundKey(7, number))
    after = play(algorithm, toy, [[2]] * 3)
    equal(algorithm.predictor(after.server, after.devices[2]), start, rtol=1e-6, atol=1e-6)


def test_configuration_needs_no_torch():
    code = "import sys, kfl.algorithms as a; [c().validate() for c in a.ALGORITHMS.values()]"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
