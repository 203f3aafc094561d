"""The reference implementation of every engine: one device after another, autograd through pure functions, in the
precision asked for.

Weights go through the network by `functional_call`, each parameter has a step of its own, nothing is rewritten, kept or
spread over workers. It shares with the engines only what says *which* numbers are drawn: batches and dropout by name.
"""

from __future__ import annotations

import copy

import torch
from torch.func import functional_call

from kfl.engine.autograd import AutogradEngine, own_draws
from kfl.engine.base import ClassStatistics
from kfl.engine.descent import batches
from kfl.engine.layers import Layers, draws, step_seed
from kfl.engine.plan import Plan
from kfl.models import parts
from kfl.models.network import tied, with_ties


class PlainEngine(AutogradEngine):
    """Reference implementation; slow but simple."""

    def __init__(self, data, models, precision="float32"):
        super().__init__(data, models, Plan(precision=precision))

    def train(self, devices, states, objective, sgd, key, data=None):
        return [
            self._descended(device, state, objective.for_device(index), sgd, key, data)
            for index, (device, state) in enumerate(zip(devices, states, strict=True))
        ]

    def _descended(self, device, state, objective, sgd, key, data):
        with own_draws(key, device):
            module = self._module(device).train()
            buffers = {name for name, _ in module.named_buffers()}
            now = {name: value.clone() for name, value in state.items()}
            moving = [name for name in now if name.rpartition("/")[2] not in buffers]
            rates = {name: objective.rate(name, sgd) for name in moving if objective.rate(name, sgd)}
            if not rates:
                return now
            velocity = {}
            inputs, targets = self._own_samples(device, "train") if data is None else data
            seed = torch.tensor(key.torch_seed("layers", device)) if draws(module, inputs[:2]) else None
            for number, batch in enumerate(batches(len(targets), sgd, key, device)):
                x, y = (inputs, targets) if batch is None else (inputs[batch], targets[batch])
                for name in rates:
                    now[name].requires_grad_()
                with Layers(seed=None if seed is None else step_seed(seed, number)):
                    loss = objective.loss(_as_function(module), now, x, y)
                gradients = torch.autograd.grad(loss, [now[name] for name in rates], allow_unused=True)
                with torch.no_grad():
                    for name, gradient in zip(rates, gradients, strict=True):
                        if gradient is not None:
                            old = velocity.get(name)
                            velocity[name] = gradient.clone() if old is None else sgd.momentum * old + gradient
                            moved = now[name] - rates[name] * velocity[name]
                            now[name] = objective.project(name, moved).detach()
                    for name in set(now) - set(rates):
                        now[name] = now[name].detach()
            return with_ties({name: value.detach() for name, value in now.items()}, tied(module), copies=True)

    @torch.no_grad()
    def class_statistics(self, devices, states, of="features", *, scatter=False, clip_norm=None):
        if not len(devices):
            return super().class_statistics(devices, states, of, scatter=scatter, clip_norm=clip_norm)
        found = []
        for device, state in zip(devices, states, strict=True):
            x, y = self._own_samples(device, "train")
            feature, logits = _as_function(self._module(device).eval())(state, x)
            vectors = {"inputs": x.flatten(1), "features": feature, "logits": logits}[of]
            if clip_norm is not None:
                vectors = torch.stack([v * min(1.0, clip_norm / max(float(v.norm()), 1e-30)) for v in vectors])
            means, spread = vectors.new_zeros(self.classes, vectors.shape[1]), 0.0
            for c in y.unique().tolist():
                own = vectors[y == c]
                means[c] = own.mean(0)
                away = own.double() - own.double().mean(0)
                spread = spread + sum(torch.outer(row, row) for row in away)
            found.append(ClassStatistics(means, torch.bincount(y, minlength=self.classes), spread if scatter else None))
        return ClassStatistics.stacked(found)

    @torch.no_grad()
    def logits(self, devices, states, inputs):
        if not len(devices):
            return super().logits(devices, states, inputs)
        inputs = self._converted(inputs)
        return torch.stack(
            [_as_function(self._module(k).eval())(s, inputs)[1] for k, s in zip(devices, states, strict=True)]
        )

    def correct(self, devices, states):
        found = []
        for device, state in zip(devices, states, strict=True):
            x, y = self._own_samples(device, "test")
            right = self.logits([device], [state], x)[0].argmax(1) == y if len(y) else torch.zeros(0)
            found.append(int(right.sum()))
        return found

    def _module(self, device):
        return copy.deepcopy(self.template(device))

    def _own_samples(self, device, split):
        x, y = self._data.read(device, split)
        return self._converted(x), y


def _as_function(module):
    body, head = parts(module)
    ties = tied(module)

    def forward(state, inputs):
        state = with_ties(state, ties)
        own = [
            {name[5:]: value for name, value in state.items() if name.startswith(prefix)}
            for prefix in ("body.", "head.")
        ]
        feature = functional_call(body, own[0], (inputs,))
        return feature, functional_call(head, own[1], (feature,))

    return forward


def class_means(engine, devices, states, clip_norm=None, of="features"):
    """Means and counts of an engine's class statistics."""
    found = engine.class_statistics(devices, states, of, clip_norm=clip_norm)
    return found.means, found.counts
