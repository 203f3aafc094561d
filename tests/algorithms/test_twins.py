"""Each algorithm next to its reference implementation: a plain loop written from the source, with torch.nn and
torch.optim only.

The twins share no code with the engine or the algorithms. Three rounds with changing cohorts agree to 1e-5.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from kfl.algorithms import (
    Apfl,
    Ditto,
    FedAvg,
    FederatedDistillation,
    FedGh,
    FedKd,
    FedMrl,
    FedProto,
    FedProx,
    FedRep,
    FedTgp,
    FixedKnowledge,
    Kfl,
    LgFedAvg,
    Local,
    Scaffold,
    SelfKnowledge,
    SharedStem,
)
from kfl.algorithms.targets import fixed_targets
from kfl.engine import RoundKey

COHORTS = [[0, 1, 3], [1, 2, 4], [0, 3, 2]]
DEVICES, CLASSES, STEPS, RATE, HEAD_RATE, MOMENTUM = 5, 4, 5, 0.05, 0.03, 0.9
COMMON = {"head_learning_rate": HEAD_RATE}


@pytest.fixture
def fleet(toy):
    """Every device's start: its own model, and the one they would have in common."""

    def model(device: int, common: bool) -> nn.Module:
        module = toy.models.builders[0]()
        module.load_state_dict(toy.models.initial(device, toy.seed, common=common))
        return module

    return lambda common=False: [model(device, common) for device in range(DEVICES)]


def optimiser(model, body_rate=RATE, head_rate=HEAD_RATE):
    groups = [
        {"params": model.body.parameters(), "lr": body_rate},
        {"params": model.head.parameters(), "lr": head_rate},
    ]
    return torch.optim.SGD(groups, momentum=MOMENTUM)


def descend(optimiser, loss, steps, limit=None):
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], limit)
        optimiser.step()


def pulled(model, x, y, targets, weight):
    """Cross-entropy + weight · mean over samples of ½‖h(x) − Ω_y‖², for the classes that have a target."""
    feature = model.body(x)
    loss = functional.cross_entropy(model.head(feature), y)
    for h, c in zip(feature, y.tolist(), strict=True):
        if c in targets:
            loss = loss + weight * 0.5 * (h - targets[c]).square().sum() / len(y)
    return loss


@torch.no_grad()
def prototypes(model, x, y):
    return {c: model.body(x[y == c]).mean(0) for c in y.unique().tolist()}


def average(models, sizes):
    """The weighted mean of models, parameter by parameter."""
    result = copy.deepcopy(models[0])
    with torch.no_grad():
        for name, value in result.named_parameters():
            parts = [dict(m.named_parameters())[name] * n for m, n in zip(models, sizes, strict=True)]
            value.copy_(sum(parts) / sum(sizes))
    return result


def same_weights(state, model):
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name in state:
        torch.testing.assert_close(state[name], expected[name], rtol=1e-5, atol=1e-5)


def same_predictors(algorithm, run, models):
    for device, state in run.devices.items():
        same_weights(algorithm.predictor(run.server, state), models[device])


def uploaded(cohort, found):
    """What the server has to learn from, by device and class: (prototype, class)."""
    return [(found[k][c].double(), c) for k in sorted(cohort) for c in sorted(found[k])]


def server_batches(toy, number, epochs, samples, size):
    """The indices of each step on the server. Only the addresses of the draws are shared with the algorithm."""
    for epoch in range(epochs):
        draw = torch.Generator().manual_seed(RoundKey(toy.seed, number).torch_seed("server batches", 0, epoch))
        yield from torch.randperm(len(samples), generator=draw).split(size)


def same_knowledge(server, targets):
    assert server["known"].tolist() == [c in targets for c in range(CLASSES)]
    for c, target in targets.items():
        torch.testing.assert_close(server["knowledge"][c], target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [True, False], ids=["kfl", "local"])
def test_kfl_and_local(share, toy, play, fleet):
    algorithm = Kfl(knowledge_weight=0.5, **COMMON) if share else Local(**COMMON)
    models, knowledge = fleet(), {}
    for cohort in COHORTS:
        total, counts = {}, {}
        for k in cohort:
            x, y = toy.train(k)
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y, o=knowledge: pulled(m, x, y, o, 0.5), STEPS)
            for c, mean in prototypes(models[k], x, y).items():
                n = int((y == c).sum())
                total[c] = total.get(c, 0) + n * mean
                counts[c] = counts.get(c, 0) + n
        if share:
            knowledge = {**knowledge, **{c: total[c] / counts[c] for c in total}}
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    if share:
        same_knowledge(run.server, knowledge)


def test_fedproto(toy, play, fleet):
    """Their code: nn.MSELoss on features, global prototypes as plain means over the devices with the class."""
    models, prototype, weight = fleet(), {}, 0.6
    for cohort in COHORTS:
        collected: dict[int, list] = {}
        for k in cohort:
            x, y = toy.train(k)

            def loss(m=models[k], x=x, y=y, known=prototype):
                feature = m.body(x)
                goal = feature.detach().clone()
                for i, c in enumerate(y.tolist()):
                    if c in known:
                        goal[i] = known[c]
                return functional.cross_entropy(m.head(feature), y) + weight * nn.MSELoss()(feature, goal)

            descend(optimiser(models[k]), loss, STEPS)
            for c, mean in prototypes(models[k], x, y).items():
                collected.setdefault(c, []).append(mean)
        prototype = {**prototype, **{c: torch.stack(found).mean(0) for c, found in collected.items()}}
    algorithm = FedProto(prototype_weight=weight, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    same_knowledge(run.server, prototype)


class Generator(nn.Module):
    """Trainable global prototypes of FedTGP, as in its authors' code."""

    def __init__(self, features, start):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, features)
        self.hidden, self.output = nn.Linear(features, features), nn.Linear(features, features)
        own = {name.removeprefix("generator/"): value for name, value in start.items() if name.startswith("generator/")}
        own["embedding.weight"] = own.pop("embedding")
        self.load_state_dict(own)

    def forward(self):
        return self.output(self.hidden(self.embedding(torch.arange(CLASSES))).relu())


@pytest.mark.parametrize("limit", [100.0, 0.05])
def test_fedtgp(limit, toy, play, fleet):
    """Zhang et al., their code: FedProto's devices, and a server that trains a generator of prototypes."""
    weight, epochs, rate, size = 2.0, 30, 0.02, 4
    algorithm = FedTgp(
        prototype_weight=weight,
        server_epochs=epochs,
        server_learning_rate=rate,
        server_batch_size=size,
        margin_limit=limit,
        **COMMON,
    )
    models, prototype = fleet(), {}
    start = algorithm.server_init(toy.engine, toy.seed)
    generator = Generator(5, start).double()
    margins = []
    for number, cohort in enumerate(COHORTS):
        found = {}
        for k in cohort:
            x, y = toy.train(k)

            def loss(m=models[k], x=x, y=y, known=prototype):
                feature = m.body(x)
                goal = feature.detach().clone()
                for i, c in enumerate(y.tolist()):
                    if c in known:
                        goal[i] = known[c]
                return functional.cross_entropy(m.head(feature), y) + weight * nn.MSELoss()(goal, feature)

            descend(optimiser(models[k]), loss, STEPS)
            found[k] = prototypes(models[k], x, y)
        sent = uploaded(cohort, found)
        mean = {c: torch.stack([p for p, own in sent if own == c]).mean(0) for c in {c for _, c in sent}}
        gap = {c: min(float((mean[c] - mean[d]).norm()) for d in mean if d != c) for c in mean}
        margins.append(min(max(gap.values()), limit))
        step = torch.optim.SGD(generator.parameters(), lr=rate)
        for batch in server_batches(toy, number, epochs, sent, size):
            features, labels = torch.stack([sent[i][0] for i in batch]), torch.tensor([sent[i][1] for i in batch])
            centres = generator()
            squares = features.square().sum(1, keepdim=True) + centres.square().sum(1) - 2 * features @ centres.T
            distance = squares.sqrt() + margins[-1] * functional.one_hot(labels, CLASSES)
            step.zero_grad()
            nn.CrossEntropyLoss()(-distance, labels).backward()
            step.step()
        made = generator().detach().float()
        prototype = {c: made[c] for c in {*prototype, *mean}}
    assert (max(margins) == limit) == (limit < 1)  # both sides of the limit are tried
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    same_knowledge(run.server, prototype)
    torch.testing.assert_close(
        run.server["generator/hidden.weight"], generator.hidden.weight.detach().float(), rtol=1e-5, atol=1e-5
    )
    assert not torch.equal(run.server["generator/hidden.weight"], start["generator/hidden.weight"])


@pytest.mark.parametrize(("head", "size"), [("trained", 1), ("trained", 4), ("as-released", 1)])
def test_fedgh(head, size, toy, play, fleet):
    """Yi et al., Algorithm 1: the server's head learns from prototypes, and devices go on from it."""
    models, rate, epochs = fleet(), 0.1, 2
    algorithm = FedGh(head=head, server_learning_rate=rate, server_epochs=epochs, server_batch_size=size, **COMMON)
    start = {n: v for n, v in algorithm.server_init(toy.engine, toy.seed).items() if n.startswith("head.")}
    shared = nn.Linear(5, CLASSES)
    shared.load_state_dict({n.removeprefix("head."): v for n, v in start.items()})
    shared = shared.double()
    for number, cohort in enumerate(COHORTS):
        found = {}
        for k in cohort:
            x, y = toy.train(k)
            if number > 0:
                models[k].head.load_state_dict(shared.state_dict())
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y: functional.cross_entropy(m(x), y), STEPS)
            found[k] = prototypes(models[k], x, y)
        sent = uploaded(cohort, found)
        # The released code steps an optimizer that holds a device's network, never the server's head.
        held = shared if head == "trained" else copy.deepcopy(models[cohort[-1]].head)
        step = torch.optim.SGD(held.parameters(), lr=rate)
        for batch in server_batches(toy, number, epochs, sent, size):
            features, labels = torch.stack([sent[i][0] for i in batch]), torch.tensor([sent[i][1] for i in batch])
            step.zero_grad()
            functional.cross_entropy(shared(features), labels).backward()
            step.step()
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    same_weights({n.removeprefix("head."): v for n, v in run.server.items() if n.startswith("head.")}, shared.float())
    assert torch.equal(run.server["head.weight"], start["head.weight"]) == (head == "as-released")


def test_fd(toy, play, fleet):
    """Jeong et al., Algorithm 1, with HtFLlib's mean of all: cross-entropy on what is said of the label elsewhere."""
    models, logits, weight = fleet(), {}, 0.6
    for cohort in COHORTS:
        collected: dict[int, list] = {}
        for k in cohort:
            x, y = toy.train(k)

            def loss(m=models[k], x=x, y=y, known=logits):
                output = m(x)
                goal = output.detach().clone()  # a goal that is the output has no gradient
                for i, c in enumerate(y.tolist()):
                    if c in known:
                        goal[i] = known[c]
                return functional.cross_entropy(output, y) + weight * functional.cross_entropy(output, goal.softmax(1))

            descend(optimiser(models[k]), loss, STEPS)
            for c in y.unique().tolist():
                collected.setdefault(c, []).append(models[k](x[y == c]).detach().mean(0))
        logits = {**logits, **{c: torch.stack(found).mean(0) for c, found in collected.items()}}
    algorithm = FederatedDistillation(distill_weight=weight, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    same_knowledge(run.server, logits)


def test_fedavg(toy, play, fleet):
    shared = fleet(common=True)[0]
    for cohort in COHORTS:
        locals_, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            model = copy.deepcopy(shared)
            descend(optimiser(model), lambda m=model, x=x, y=y: functional.cross_entropy(m(x), y), STEPS)
            locals_.append(model)
            sizes.append(len(y))
        shared = average(locals_, sizes)
    algorithm = FedAvg(**COMMON)
    run = play(algorithm, toy, COHORTS)
    same_weights(run.server, shared)
    same_predictors(algorithm, run, [shared] * DEVICES)


def near(model, center, weight):
    """μ/2 ‖w − w*‖²."""
    pairs = zip(model.parameters(), center.parameters(), strict=True)
    return weight / 2 * sum((own - fixed.detach()).square().sum() for own, fixed in pairs)


@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_fedprox(proximal, toy, play, fleet):
    """Li et al. 2020, Algorithm 2: federated averaging on F_k(w) + μ/2 ‖w − wᵗ‖²."""
    shared = fleet(common=True)[0]
    for cohort in COHORTS:
        locals_, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            model = copy.deepcopy(shared)

            def loss(m=model, x=x, y=y, w=shared):
                return functional.cross_entropy(m(x), y) + near(m, w, proximal)

            descend(optimiser(model), loss, STEPS)
            locals_.append(model)
            sizes.append(len(y))
        shared = average(locals_, sizes)
    algorithm = FedProx(proximal=proximal, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_weights(run.server, shared)
    same_predictors(algorithm, run, [shared] * DEVICES)
    if not proximal:
        same_weights(play(FedAvg(**COMMON), toy, COHORTS).server, shared)


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_scaffold(momentum, toy, play, fleet):
    """Karimireddy et al. 2020, Algorithm 1, option II; with momentum, K η is what a constant gradient moves by."""
    shared = fleet(common=True)[0]
    zero = [torch.zeros_like(p) for p in shared.parameters()]
    common, own, seen = [z.clone() for z in zero], [[z.clone() for z in zero] for _ in range(DEVICES)], set()
    moved, speed = 0.0, 0.0
    for _ in range(STEPS):
        speed = momentum * speed + 1
        moved += speed
    for cohort in COHORTS:
        locals_, sizes, changes = [], [], []
        for k in cohort:
            x, y = toy.train(k)
            model = copy.deepcopy(shared)
            step = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
            for _ in range(STEPS):
                step.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                for p, c, mine in zip(model.parameters(), common, own[k], strict=True):
                    p.grad += c - mine
                step.step()
            after = [
                mine - c + (w.detach() - p.detach()) / (moved * RATE)
                for mine, c, w, p in zip(own[k], common, shared.parameters(), model.parameters(), strict=True)
            ]
            changes.append([new - old for new, old in zip(after, own[k], strict=True)])
            own[k] = after
            locals_.append(model)
            sizes.append(len(y))
        seen |= set(cohort)
        common = [torch.stack([own[k][i] for k in seen]).mean(0) for i in range(len(zero))]
        shared = average(locals_, sizes)
    algorithm = Scaffold(momentum=momentum)
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, [shared] * DEVICES)
    for (name, _), expected in zip(shared.named_parameters(), common, strict=True):
        torch.testing.assert_close(run.server[f"control/{name}"], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_ditto(toy, play, fleet):
    """Li et al. 2021, Algorithm 1: federated averaging, and next to it v ← v − η (∇F(v) + λ (v − wᵗ))."""
    shared, personal = fleet(common=True)[0], fleet(common=True)
    for cohort in COHORTS:
        locals_, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            model = copy.deepcopy(shared)
            descend(optimiser(model), lambda m=model, x=x, y=y: functional.cross_entropy(m(x), y), STEPS)
            locals_.append(model)
            sizes.append(len(y))

            def loss(m=personal[k], x=x, y=y, w=shared):
                return functional.cross_entropy(m(x), y) + near(m, w, 0.7)

            descend(optimiser(personal[k]), loss, STEPS)
        shared = average(locals_, sizes)
    algorithm = Ditto(pull=0.7, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_weights(run.server, shared)
    same_predictors(algorithm, run, personal)


@pytest.mark.parametrize(("head_steps", "body_steps"), [(None, None), (7, 2)])
def test_fedrep(head_steps, body_steps, toy, play, fleet):
    """Collins et al., Algorithm 1: steps on the head, then steps on the body, and only bodies are averaged."""
    models = fleet(common=True)
    body = copy.deepcopy(models[0].body)
    first, second = head_steps or STEPS, body_steps or STEPS
    for cohort in COHORTS:
        bodies, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            model = models[k]
            model.body.load_state_dict(body.state_dict())

            def loss(m=model, x=x, y=y):
                return functional.cross_entropy(m(x), y)

            descend(torch.optim.SGD(model.head.parameters(), lr=HEAD_RATE, momentum=MOMENTUM), loss, first)
            descend(torch.optim.SGD(model.body.parameters(), lr=RATE, momentum=MOMENTUM), loss, second)
            bodies.append(copy.deepcopy(model.body))
            sizes.append(len(y))
        body = average(bodies, sizes)
    algorithm = FedRep(head_steps=head_steps, body_steps=body_steps, **COMMON)
    run = play(algorithm, toy, COHORTS)
    for model in models:  # every device predicts with the current body
        model.body.load_state_dict(body.state_dict())
    same_predictors(algorithm, run, models)
    idle = algorithm.device_init(toy.engine, 4, toy.seed)
    fresh = fleet(common=True)[4]
    fresh.body.load_state_dict(body.state_dict())
    same_weights(algorithm.predictor(run.server, idle), fresh)


@pytest.mark.parametrize(("mixing", "mixing_rate"), [(0.5, 0.1), (0.98, 3.0)], ids=["inside", "clipped"])
def test_apfl(mixing, mixing_rate, toy, play, fleet):
    """Deng et al., Algorithm 1, with the three gradients written out by hand from ∇F(w) and ∇F(v̄)."""
    shared = fleet(common=True)[0]
    personal = [copy.deepcopy(shared) for _ in range(DEVICES)]
    alpha = [torch.tensor(mixing) for _ in range(DEVICES)]
    seen = set()

    def mixed(k, w):
        model = copy.deepcopy(w)
        with torch.no_grad():
            for target, v, own in zip(model.parameters(), personal[k].parameters(), w.parameters(), strict=True):
                target.copy_(alpha[k] * v + (1 - alpha[k]) * own)
        return model

    for cohort in COHORTS:
        locals_, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            w, v = copy.deepcopy(shared), personal[k]
            step_w, step_v = optimiser(w), optimiser(v)
            step_alpha = torch.optim.SGD([alpha[k]], lr=mixing_rate, momentum=MOMENTUM)
            for _ in range(STEPS):
                between = mixed(k, w)
                functional.cross_entropy(between(x), y).backward()
                inner = sum(
                    ((a - b) * g.grad).sum()
                    for a, b, g in zip(v.parameters(), w.parameters(), between.parameters(), strict=True)
                )
                step_w.zero_grad()
                functional.cross_entropy(w(x), y).backward()
                for own, g in zip(v.parameters(), between.parameters(), strict=True):
                    own.grad = alpha[k] * g.grad
                alpha[k].grad = inner.detach()
                for step in (step_w, step_v, step_alpha):
                    step.step()
                alpha[k].clamp_(0, 1)
                seen.add(float(alpha[k]))
            locals_.append(w)
            sizes.append(len(y))
        shared = average(locals_, sizes)
    algorithm = Apfl(mixing=mixing, mixing_rate=mixing_rate, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_weights(run.server, shared)
    for k, state in run.devices.items():
        torch.testing.assert_close(state["mixing"], alpha[k], rtol=1e-5, atol=1e-5)
        same_weights({n.removeprefix("personal/"): v for n, v in state.items() if n != "mixing"}, personal[k])
        same_weights(algorithm.predictor(run.server, state), mixed(k, shared))
    assert (seen & {0.0, 1.0} != set()) == (mixing_rate == 3.0)  # the clip is really tried


def test_fedkd(toy, play, fleet):
    """FedMD, Algorithm 1: communicate, aggregate, distribute, digest, revisit; softened probabilities."""
    models, consensus = fleet(), None
    inputs = toy.dataset.inputs("train", toy.proxy)
    rate, steps, soft = 0.02, 4, 3.0
    for cohort in COHORTS:
        said = []
        for k in cohort:
            x, y = toy.train(k)
            model = models[k]
            if consensus is not None:
                wanted = functional.softmax(consensus / soft, dim=1)

                def digest(m=model, wanted=wanted):
                    ours = functional.log_softmax(m(inputs) / soft, dim=1)
                    return soft**2 * (wanted * (wanted.log() - ours)).sum(1).mean()

                descend(optimiser(model, rate, rate), digest, steps)
            descend(optimiser(model), lambda m=model, x=x, y=y: functional.cross_entropy(m(x), y), STEPS)
            said.append(model(inputs).detach())
        consensus = torch.stack(said).mean(0)
    algorithm = FedKd(distill_rate=rate, distill_steps=steps, temperature=soft, **COMMON)
    run = play(algorithm, toy, COHORTS)
    same_predictors(algorithm, run, models)
    torch.testing.assert_close(run.server["consensus"], consensus, rtol=1e-5, atol=1e-5)


def relu_layers(*sizes):
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*itertools.chain(*((nn.Linear(before, after), nn.ReLU()) for before, after in pairs)))


def load(module, state):
    """A module with the values of a state in their order, whatever their names."""
    module.load_state_dict(dict(zip(module.state_dict(), state.values(), strict=True)))
    return module


@pytest.mark.parametrize("limit", [None, 0.2])
def test_fedmrl(limit, mixed_toy, play):
    """Yi et al.: two bodies, one projector, two heads; every device keeps its projector."""
    algorithm = FedMrl(small_features=2, small_width=7, small_loss_weight=0.6, largest_gradient=limit, **COMMON)
    toy = mixed_toy.of(algorithm)
    common = toy.models.initial(0, toy.seed, common=True)

    def start(prefix, state=common):
        return {name: value for name, value in state.items() if name.startswith(prefix)}

    small = nn.ModuleList([load(relu_layers(6, 7, 2), start("body.small")), load(nn.Linear(2, 4), start("head.small"))])
    own, projectors = [], []
    for k in range(DEVICES):
        alone = mixed_toy.models.initial(k, toy.seed)  # the device's network as it starts in other algorithms
        body, head = (relu_layers(6, 7, (8, 6, 9)[k % 3], 5), nn.Linear(5, 4))
        own.append(nn.ModuleList([load(body, start("body.", alone)), load(head, start("head.", alone))]))
        projectors.append(load(nn.Linear(2 + 5, 5), start("body.projector")))
    trained = {}
    for cohort in COHORTS:
        uploads, sizes = [], []
        for k in cohort:
            x, y = toy.train(k)
            shared, mine, projector = copy.deepcopy(small), own[k], projectors[k]

            def loss(shared=shared, mine=mine, projector=projector, x=x, y=y):
                fused = projector(torch.cat([shared[0](x), mine[0](x)], 1))
                return functional.cross_entropy(mine[1](fused), y) + 0.6 * functional.cross_entropy(
                    shared[1](fused[:, :2]), y
                )

            groups = [
                {"params": [p for m in (shared[0], mine[0], projector) for p in m.parameters()], "lr": RATE},
                {"params": [*shared[1].parameters(), *mine[1].parameters()], "lr": HEAD_RATE},
            ]
            descend(torch.optim.SGD(groups, momentum=MOMENTUM), loss, STEPS, limit)
            trained[k] = shared
            uploads.append(shared)
            sizes.append(len(y))
        small = average(uploads, sizes)
    run = play(algorithm, toy, COHORTS)

    def same(state, prefix, module):
        found, wanted = start(prefix, state), module.state_dict()
        for value, expected in zip(found.values(), wanted.values(), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)

    assert len(run.server) == 6
    same(run.server, "body.small", small[0])
    same(run.server, "head.small", small[1])
    for k, state in run.devices.items():  # tested with the small model as the device trained it last
        model = algorithm.predictor(run.server, state)
        same(model, "body.small", trained[k][0])
        same(model, "body.own", own[k][0])
        same(model, "head.own", own[k][1])
        same(model, "body.projector", projectors[k])


def test_self_knowledge(toy, play, fleet):
    models, own = fleet(), [{} for _ in range(DEVICES)]
    for cohort in COHORTS:
        for k in cohort:
            x, y = toy.train(k)
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y, o=own[k]: pulled(m, x, y, o, 0.5), STEPS)
            own[k] = prototypes(models[k], x, y)
    algorithm = SelfKnowledge(knowledge_weight=0.5, **COMMON)
    same_predictors(algorithm, play(algorithm, toy, COHORTS), models)


@pytest.mark.parametrize("kind", ["random", "simplex"])
def test_fixed_knowledge(kind, toy, play, fleet):
    algorithm = FixedKnowledge(knowledge_weight=0.5, scale=2.0, targets=kind, **COMMON)
    models, targets = fleet(), dict(enumerate(fixed_targets(kind, CLASSES, 5, 2.0, toy.seed)))
    for cohort in COHORTS:
        for k in cohort:
            x, y = toy.train(k)
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y: pulled(m, x, y, targets, 0.5), STEPS)
    same_predictors(algorithm, play(algorithm, toy, COHORTS), models)


@pytest.fixture
def mixed_fleet(mixed_toy):
    """Every device's own start in a fleet of three architectures, and the first layer they would have in common."""

    def model(device: int, common: bool = False) -> nn.Module:
        module = mixed_toy.models.builders[mixed_toy.models.architecture[device]]()
        module.load_state_dict(mixed_toy.models.initial(device, mixed_toy.seed, common=common))
        return module

    return [model(device) for device in range(DEVICES)], model(0, common=True)


@pytest.mark.parametrize("share", ["head", "stem"])
def test_lg_fedavg(share, mixed_toy, play, mixed_fleet):
    """Liang et al., Algorithm 1: train everything, average one part, and every device has the newest of it."""
    models, start = mixed_fleet

    def part(model):
        return model.head if share == "head" else model.body[0]

    shared = copy.deepcopy(part(start))
    for cohort in COHORTS:
        parts, sizes = [], []
        for k in cohort:
            x, y = mixed_toy.train(k)
            part(models[k]).load_state_dict(shared.state_dict())
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y: functional.cross_entropy(m(x), y), STEPS)
            parts.append(copy.deepcopy(part(models[k])))
            sizes.append(len(y))
        shared = average(parts, sizes)
    for model in models:
        part(model).load_state_dict(shared.state_dict())
    algorithm = LgFedAvg(share=share, **COMMON)
    same_predictors(algorithm, play(algorithm, mixed_toy, COHORTS), models)


def coarse(values, bits):
    """The grid ±s, ±3s … that loses least in squares, by trying many s; one bit: the sign times the mean magnitude."""
    if bits == 32:
        return values.clone()
    exact = values.double().flatten()
    if bits == 1:
        return (torch.where(exact >= 0, 1.0, -1.0) * exact.abs().mean()).float().reshape(values.shape)
    odd = torch.arange(-(2**bits) + 1, 2**bits, 2, dtype=torch.float64)

    def nearest(grid):  # of two that are equally near, such as −s and s for zero, the larger
        return len(grid) - 1 - (exact[:, None] - grid.flip(0)).abs().argmin(1)

    largest = odd * exact.abs().max() / (2**bits - 1)
    if bits > 8:
        return largest[nearest(largest)].float().reshape(values.shape)
    tries = []
    for power in range(24):
        codes = odd[nearest(largest * 0.9**power)]
        fitted = (codes * exact).sum() / codes.square().sum()  # the best s for these codes
        tries.append((float((codes * fitted - exact).square().sum()), float(fitted)))
    grid = odd * torch.tensor(min(tries)[1], dtype=torch.float32)
    return grid[nearest(grid)].float().reshape(values.shape)


@pytest.mark.parametrize(("bits", "down"), [(32, 32), (1, 32), (1, 7), (4, 9)])
@pytest.mark.parametrize("pull", ["none", "simplex", "knowledge"])
def test_shared_stem(bits, down, pull, mixed_toy, play, mixed_fleet):
    """One layer is common to the three networks. What quantization takes from an update is added to the next."""
    models, start = mixed_fleet
    algorithm = SharedStem(
        bits_per_value=bits, bits_down=down, budget_bits=2000, pull=pull, knowledge_weight=0.5, scale=2.0, **COMMON
    )
    stem = {name: value.clone() for name, value in start.body[0].state_dict().items()}
    left = [dict.fromkeys(stem, 0.0) for _ in range(DEVICES)]
    targets = dict(enumerate(fixed_targets("simplex", CLASSES, 5, 2.0, mixed_toy.seed))) if pull == "simplex" else {}
    for cohort in COHORTS:
        total, samples, sums, counts = dict.fromkeys(stem, 0.0), 0, {}, {}
        received = {name: coarse(value, down) for name, value in stem.items()}
        for k in cohort:
            x, y = mixed_toy.train(k)
            models[k].body[0].load_state_dict(received)
            descend(optimiser(models[k]), lambda m=models[k], x=x, y=y, o=targets: pulled(m, x, y, o, 0.5), STEPS)
            for name, value in models[k].body[0].state_dict().items():
                wanted = value - received[name] + left[k][name]
                sent = coarse(wanted, bits)
                left[k][name] = wanted - sent
                total[name] = total[name] + len(y) * sent
            samples += len(y)
            for c, mean in prototypes(models[k], x, y).items():
                n = int((y == c).sum())
                sums[c], counts[c] = sums.get(c, 0) + n * mean, counts.get(c, 0) + n
        stem = {name: value + total[name] / samples for name, value in stem.items()}
        if pull == "knowledge":
            targets = {**targets, **{c: sums[c] / counts[c] for c in sums}}
    run = play(algorithm, mixed_toy, COHORTS)
    same_predictors(algorithm, run, models)
    for name, value in stem.items():
        torch.testing.assert_close(run.server[f"body.0.{name}"], value, rtol=1e-5, atol=1e-5)
    if pull == "knowledge":
        same_knowledge(run.server, targets)
