"""A member that lies about itself: it counts with what the server has reason to believe, and that is on record."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kfl.algorithms import FedAvg, Kfl
from kfl.algorithms.sums import Sums
from kfl.core.errors import ConfigError
from kfl.core.refusals import describe, stored_refusal
from kfl.scheduling import SCHEDULERS
from kfl.simulation import load_run
from kfl.wireless import CellConfig
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet._flower.records import from_record
from kfl_fleet.messages.frames import to_tensors, unpack
from kfl_fleet.messages.profile import Profile
from kfl_fleet.server.claim_limits import believe
from kfl_fleet.server.messaging import Courier
from kfl_fleet.server.roster import Roster
from kfl_fleet.server.status import read_status
from tests.fleet.conftest import Node, serve
from tests.fleet.messages import changed, round_of, table_of, with_array
from tests.fleet.test_secure_fleet import SECURE, experiment, keep_warm

HUGE = 2**53
LIAR = 4


def server_of(folder):
    with np.load(folder / "server.npz") as found:
        return {name: found[name] for name in found.files}


def claim(reply, **values):
    """A profile with other claims in it, and its digest, which the device then has to answer rounds with."""
    reply = changed(reply, **values)
    return reply, Profile.read(table_of(reply)).digest()


class Liar:
    """Claims 2^53 samples when it joins, answers rounds accordingly, and uploads zeros. Notes what the others send."""

    def __init__(self, **claims):
        self.claims, self.digest, self.honest = claims, "", []

    def __call__(self, device, asked, reply):
        arrays = to_tensors(unpack(from_record(reply.content))[1])
        if device != LIAR:
            if round_of(asked) == 0:
                self.honest.append(arrays)
            return reply
        if round_of(asked) is None:
            reply, self.digest = claim(reply, **self.claims)
            return reply
        reply = changed(reply, digest=self.digest)
        for name, value in arrays.items():
            lie = np.zeros_like(value.numpy())
            if name == "samples":
                lie = np.array(float(self.claims["samples"]))
            if name == "counts":
                lie = np.array(self.claims["samples_per_class"])
            reply = with_array(reply, name, lie)
        return reply


class Exaggerator:
    """Claims 2^53 samples when it joins, and otherwise does what it is asked to."""

    def __init__(self, masked):
        self.masked, self.digest = masked, ""

    def __call__(self, device, asked, reply):
        if device != LIAR or table_of(reply).get("kind") == "sum":
            return reply
        if round_of(asked) is None:
            reply, self.digest = claim(reply, **({"samples": HUGE} if self.masked else everywhere()))
            return reply
        reply = changed(reply, digest=self.digest)
        return reply if self.masked else with_array(reply, "samples", np.array(float(HUGE)))


def everywhere(samples=HUGE):
    """Claims of a device that says it has many samples of every class."""
    return {
        "samples": samples,
        "samples_per_class": [samples // 10 + (samples % 10 if c == 0 else 0) for c in range(10)],
    }


def fleet_of_five(small, algorithm, **changes):
    plain = {"devices": 5, "rounds": 1, "widths": (8,), "scheduler": SCHEDULERS["all"](), "radio": None}
    return small(**{**plain, "algorithm": algorithm, **changes})


def test_who_claims_all_samples_of_the_world_has_half_of_the_average_of_weights(loop, small, tmp_path):
    grid, config = loop(fleet_of_five(small, FedAvg(local_steps=1)))
    grid.twist = liar = Liar(**everywhere())
    serve(grid, config, tmp_path / "run")
    weights = [arrays["samples"] for arrays in liar.honest]
    for name, value in server_of(tmp_path / "run").items():
        mean = sum(w * a[name].double() for w, a in zip(weights, liar.honest, strict=True)) / sum(weights)
        np.testing.assert_allclose(value, mean.numpy() / 2, atol=1e-6, err_msg="zeros are the other half")
    (log,) = load_run(tmp_path / "run")[1].rounds
    median = sorted(int(w) for w in weights)[1]
    assert [(one["device"], one["code"], one["limit"]) for one in log.clipped] == [
        (LIAR, "more_than_median", 10 * median),
        (LIAR, "weight_capped", 0.5),
    ]
    assert log.faults == log.rejected == ()
    status = read_status(tmp_path / "run")
    assert [one.clipped for one in status.devices] == [0, 0, 0, 0, 1]
    assert status.devices[LIAR].cuts == (
        f"its samples are {HUGE}, more than 10 times the fleet's median; it counts with {10 * median}",
    )
    assert "Device 4 says too much" in (tmp_path / "run" / "server.log").read_text()


def test_in_the_average_of_each_class_nobody_has_more_than_half_where_others_report_it(loop, small, tmp_path):
    grid, config = loop(fleet_of_five(small, Kfl(local_steps=1)))
    grid.twist = liar = Liar(**everywhere())
    serve(grid, config, tmp_path / "run")
    means = torch.stack([arrays["means"].double() for arrays in liar.honest])
    counts = torch.stack([arrays["counts"].double() for arrays in liar.honest])
    found = server_of(tmp_path / "run")["knowledge"]
    for c in range(10):
        weights = counts[:, c]
        if (weights > 0).sum() >= 2 and weights.max() <= weights.sum() / 2:  # no honest one is cut
            mean = weights @ means[:, c] / weights.sum()
            np.testing.assert_allclose(found[c], mean.numpy() / 2, atol=1e-4 * float(mean.abs().max()))
        elif (weights > 0).sum() == 1:
            np.testing.assert_allclose(found[c], means[weights > 0, c][0].numpy() / 2, atol=1e-6)
        elif not weights.any():
            assert not found[c].any(), "who alone reports a class is its average"


def test_samples_that_the_server_was_told_bound_a_device_and_a_resumed_server_finds_the_same(loop, small, tmp_path):
    told = {"registered_samples": (800, 800, 800, 800, 500), "largest_weight": 1.0}
    grid, config = loop(fleet_of_five(small, FedAvg(local_steps=1), rounds=2), **told)
    clean, _ = loop(config.experiment, **told)
    clean.node_config = {device: {"state": str(tmp_path / "others")} for device in range(5)}
    grid.twist, clean.twist = liar, _ = Liar(**everywhere()), Liar(**everywhere())
    serve(clean, config, tmp_path / "whole")

    class PulledPlugError(BaseException):
        """Ends the server without any of its own clean-up."""

    def pull_the_plug(device, asked, reply):
        if round_of(asked) == 1 and device == 2:
            grid.twist = liar
            raise PulledPlugError
        return liar(device, asked, reply)

    grid.twist = pull_the_plug
    with pytest.raises(PulledPlugError):
        serve(grid, config, tmp_path / "run")
    serve(grid, config, tmp_path / "run")
    rounds, whole = load_run(tmp_path / "run")[1].rounds, load_run(tmp_path / "whole")[1].rounds
    assert [log.clipped for log in rounds] == [log.clipped for log in whole]
    assert rounds[1].clipped == (
        {"device": LIAR, "code": "more_than_registered", "field": "samples", "found": HUGE, "limit": 500},
    )
    fleet = json.loads((tmp_path / "run" / "fleet.json").read_text())
    assert [cut["code"] for cut in fleet["devices"]["4"]["cuts"]] == ["more_than_registered"]
    for name, value in server_of(tmp_path / "whole").items():
        np.testing.assert_allclose(server_of(tmp_path / "run")[name], value, atol=1e-6)


PROFILE = Profile(0, 2, 4, 50, 40, 50, 40, (2,), 30, (10, 20), 100, 60)


def profiles(*samples, tests=100, **more):
    return {
        d: replace(PROFILE, device=d, samples=n, samples_per_class=(), test_samples=tests, **more)
        for d, n in enumerate(samples)
    }


@pytest.mark.parametrize(
    ("claimed", "believed"),
    [
        ((HUGE,), (HUGE,)),  # no device to compare with
        ((500, HUGE), (500, 5000)),
        ((1, 500), (1, 10)),
        ((500, 400, HUGE, 450), (500, 400, 4500, 450)),
        ((500, 400, 450, 1), (500, 400, 450, 1)),
        ((500, 400, HUGE, 450, HUGE), (500, 400, 5000, 450, 5000)),
        ((5000, 500, 500), (5000, 500, 500)),
    ],
)
def test_samples_are_believed_up_to_a_multiple_of_the_median(claimed, believed):
    found = believe(profiles(*claimed), FleetSettings(), None)
    assert tuple(found[d].samples for d in range(len(claimed))) == believed
    assert all(bool(found[d].cuts) == (claimed[d] > believed[d]) for d in found)
    assert tuple(
        b.samples for b in believe(profiles(*claimed), FleetSettings(most_samples=math.inf), None).values()
    ) == (claimed)


def test_a_late_joiner_changes_the_median_but_not_what_was_told():
    few, more = profiles(10, 1000), profiles(10, 1000, 1000)
    assert believe(few, FleetSettings(), None)[1].samples == 100
    assert believe(more, FleetSettings(), None)[1].samples == 1000
    told = FleetSettings(registered_samples=(700,))
    assert {believe(some, told, None)[1].samples for some in (few, more)} == {700}


def test_accuracy_counts_with_the_test_samples_that_are_believed():
    own = profiles(500, 500, 500) | {
        3: replace(PROFILE, device=3, samples=500, samples_per_class=(), test_samples=HUGE)
    }
    belief = believe(own, FleetSettings(), None)[3]
    assert belief.test_samples == 1000
    assert (belief.correct(HUGE), belief.correct(HUGE // 2), belief.correct(0)) == (1000, 500, 0)
    assert belief.weight_cut is None


@pytest.mark.parametrize(
    ("field", "said", "used"),
    [
        ("max_power_w", 1e6, 1.0),
        ("cpu_hz", 1e12, 1e11),
        ("flops_per_cycle", 1e12, 1e16 / 0.85e9),
        ("power_coefficient", 0.0, 1e-13 * 4 / 0.85e9**2),
        ("budget_j", math.inf, 40.0),
        ("gain", 30.0, None),
    ],
)
def test_hardware_that_cannot_be_or_is_not_allowed_is_cut(field, said, used):
    claimed = profiles(500, **{field: said})
    belief = believe(claimed, FleetSettings(most_budget_j=40.0), CellConfig())[0]
    assert getattr(belief.profile, field) == (used if used is None else pytest.approx(used))
    cut = next(cut for cut in belief.cuts if cut["field"] == field)
    assert field in describe(*stored_refusal(cut))
    json.dumps(belief.cuts, allow_nan=False)
    honest = profiles(500, cpu_hz=1e9, flops_per_cycle=8.0, power_coefficient=2e-27, max_power_w=1.0, gain=1e-6)
    assert believe(honest, FleetSettings(), CellConfig())[0].profile is honest[0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"registered_samples": (1, 2)}, "one for each of the 5 devices"),
        ({"registered_samples": (0,)}, "1 or more"),
        ({"most_samples": 0.5}, "most_samples"),
        ({"largest_weight": 0.0}, "largest_weight"),
        ({"most_budget_j": -1.0}, "most_budget_j"),
    ],
)
def test_bounds_that_cannot_work_are_refused_in_a_sentence(small, values, said):
    with pytest.raises(ConfigError, match=said):
        ServerConfig(small(devices=5), FleetSettings(**values)).validate()


def test_an_unseen_sum_of_more_weight_than_there_are_samples_is_not_used(loop, serve_fleet):
    grid, config = loop(experiment(FedAvg(local_steps=1), rounds=2, widths=(8,)), **SECURE)
    workers, _ = keep_warm(grid)
    honest = grid.answer

    def answer(message, context):
        table = table_of(message)
        worker = workers.get(2)
        if (context.node_config["partition-id"], table.get("step"), table.get("round")) == (2, "mask", 0):
            terms = worker._masked._terms
            lie = Sums(terms.values, {name: 100 * weight for name, weight in terms.weights.items()})
            worker._masked._terms = lie
        return honest(message, context)

    grid.answer = answer
    first, second = load_run(serve_fleet(grid, config))[1].rounds
    assert (first.status.code, second.status.code) == ("no_sum", "ok")
    assert "one of them lies" in first.status.facts["text"]


def test_a_claim_of_all_samples_of_the_world_does_not_spoil_an_unseen_sum(loop, serve_fleet, tmp_path):
    """Numbers of a sum have as many bits as the largest weight asks for: 2^53 would leave the others none."""
    found = {}
    for name, more in (("plain", {"quorum": 0.0}), ("masked", SECURE)):
        grid, config = loop(experiment(FedAvg(local_steps=1), rounds=1, widths=(8,)), **more, largest_weight=1.0)
        grid.node_config = {device: {"state": str(tmp_path / name / "state")} for device in range(6)}
        keep_warm(grid)
        grid.twist = Exaggerator(masked=name == "masked")
        serve(grid, config, tmp_path / name / "run")
        found[name] = server_of(tmp_path / name / "run")
    for name, value in found["plain"].items():
        assert np.abs(value).max() > 0
        np.testing.assert_allclose(found["masked"][name], value, atol=0.05)


def test_nodes_that_never_answer_hold_rounds_up_for_a_tenth_of_the_time_at_most(loop, small):
    """Ten members take turns in being online and silent: a round begins only when who is there was asked."""
    grid, config = loop(small(rounds=1, widths=(16,)), profile_deadline_s=60.0)
    grid.twist = lambda device, asked, reply: None
    roster, courier = Roster(config, "a run", clock=grid.clock), Courier(grid, 0.5, grid.clock)
    silent = [2000 + number for number in range(10)]
    waited_s, began_s = 0.0, grid.clock.now()
    for look in range(5000):
        grid.online = {silent[look % 10]: Node(silent[look % 10])}
        before_s = grid.clock.now()
        assert roster.muster(courier, courier.nodes()) == []
        waited_s += grid.clock.now() - before_s
        grid.skip(1.0)
    first_s = len(silent) * 60.0
    assert first_s <= waited_s <= first_s + 0.12 * (grid.clock.now() - began_s)
    assert len(roster.refused) == len(silent)
