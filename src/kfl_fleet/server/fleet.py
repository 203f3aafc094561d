"""Real devices behind Flower, as a fleet: messages go out, answers come in, and each is checked before it is used.

What only a real fleet has is here too: waiting for devices, late joiners, a quorum, measured energy, and gains that are
measured or reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.algorithms import Rejection, UploadFormat
from kfl.algorithms.sums import summation_of
from kfl.algorithms.uploads import sent_bits
from kfl.core.errors import ConfigError
from kfl.core.refusals import describe, stored_refusal
from kfl.runfolder import RunReader
from kfl.simulation.fleet import BoolArray, Conditions, Fleet, FloatArray, IntArray, Replies
from kfl.wireless.gain_trace import measured_gains
from kfl_fleet.logs import iso, note, warn
from kfl_fleet.messages.frames import pack_all
from kfl_fleet.messages.protocol import Parts, Values
from kfl_fleet.server.caps import cap_weights, weight_limits
from kfl_fleet.server.claim_limits import LEAST_J_PER_FLOP, Belief
from kfl_fleet.server.inventory import Inventory, server_engine
from kfl_fleet.server.messaging import Answer, Courier, NoReply
from kfl_fleet.server.privacy import PrivacyLedger
from kfl_fleet.server.roster import Member, Roster
from kfl_fleet.server.secure_round import KEYS, MaskedRound, masked_bits
from kfl_fleet.server.verdicts import Question, Verdict, energy_limits, judge, most_bytes
from kfl_fleet.setup import Advice

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.runfolder import RunFolder, RunState
    from kfl.scheduling import Decision
    from kfl.wireless import LinkState

WAIT_S = 1.0
"""Seconds between two looks for devices while too few are online."""


class FlowerFleet(Fleet):
    """The devices that a roster knows, reached by a courier."""

    def __init__(self, roster: Roster, courier: Courier, on_look: Callable[[bool], None], target: RunFolder) -> None:
        self.roster, self.courier = roster, courier
        self.experiment, self.settings = roster.config.experiment, roster.config.fleet
        self.quorum = self.settings.quorum
        self.privacy = PrivacyLedger(self.experiment.algorithm, self.settings.privacy_delta)
        self.round_facts: dict[str, Any] = {}
        """Real times and bytes of the last round."""
        self.present: dict[int, Member] = {}
        """Devices that were online at the last look."""
        self._gone: set[int] = set()
        """Devices that were there and are not."""
        self._on_look, self._target = on_look, target
        self._asked = RunReader(target.path).asked()
        """The last round in which an earlier process of this server asked devices, and who was there."""
        cell, gains = self.experiment.cell_config, self.settings.gains
        self._measured = None if cell is None or gains is None else measured_gains(gains, cell, self.experiment.devices)
        self._reported: dict[int, float] = {}
        """Channel gains as devices last reported them."""
        self.beliefs: dict[int, Belief] = {}
        """What the numbers of this round's devices are, as far as they can be believed."""
        self._told: set[tuple[int, str]] = set()
        """Claims that the log has a line about."""
        self._joined: set[int] = set()
        """Devices that introduced themselves since the last round began."""
        self._started_s = self.judged_s = 0.0
        """On the clock `time.perf_counter`: when the last round started, and when its answers were judged."""

    def assemble(self) -> None:
        """Wait for all devices, or after a while for as many as are needed."""
        end = self.courier.clock.now() + self.settings.join_deadline_s
        while self.look() < self.experiment.devices:
            if len(self.present) >= self.settings.min_devices and self.courier.clock.now() >= end:
                online, all_ = len(self.present), self.experiment.devices
                note("run_begins", f"{online} of {all_} devices are online; the run begins.", devices=online)
                break
            self.courier.clock.sleep(WAIT_S)
        self.engine = server_engine(self.experiment, next(iter(self.roster.members.values())).profile)
        self._take_stock()

    def restore(self, state: RunState) -> RunState:
        """Continue from a checkpoint, if the devices that are online fit it."""
        fresh = self.experiment.algorithm.server_init(self.engine, self.experiment.seed)
        for name, value in fresh.items():
            found, expected = tuple(state.server[name].shape), tuple(value.shape)
            if found != expected:
                raise ConfigError(
                    "folder", found, f"that of a run whose {name} has the shape {expected}, as devices have"
                )
        note("run_continues", f"The run continues with round {state.round + 1}.", round=state.round + 1)
        return state

    def gather(self, state: RunState) -> RunState:
        """Wait for enough devices, and count late joiners in: their samples, budgets and accuracy."""
        self.look()
        complained = self.courier.clock.now()
        while len(self.present) < self.settings.min_devices:
            if self.courier.clock.now() - complained > 60:
                complained = self.courier.clock.now()
                number, online = state.round + 1, len(self.present)
                warn("round_waits", f"Round {number} waits: too few devices are online.", round=number, devices=online)
            self.courier.clock.sleep(WAIT_S)
            self.look()
        if self._joined:
            self._take_stock()
            scheduler = state.accounts.scheduler
            allowance_j = self.table.budget_j / max(scheduler.horizon, 1)
            correct = self._counts(state, self._joined)
            accounts = replace(state.accounts, scheduler=replace(scheduler, allowance_j=allowance_j))
            state = replace(state, accounts=accounts, correct=correct)
            self._joined.clear()
        self._started_s = time.perf_counter()
        return state

    def look(self) -> int:
        """Find the devices that are online, asking new ones for their profile; return how many there are."""
        nodes = self.courier.nodes()
        refused = dict(self.roster.refused)
        joined = self.roster.muster(self.courier, nodes)
        self._joined |= set(joined)
        before, self.present = self.present, self.roster.present(nodes)
        self._tell_presence(before.keys(), joined)
        self._on_look(bool(joined) or self.roster.refused != refused)
        return len(self.present)

    def _tell_presence(self, before: Set[int], joined: Collection[int]) -> None:
        """Say which devices have gone since the last look, and which have come back."""
        for device in sorted(before - self.present.keys()):
            self._gone.add(device)
            sentence = f"Device {device} is not there any more; rounds go on without it until it is back."
            warn("device_gone", sentence, device=device)
        for device in sorted(self._gone & self.present.keys()):
            self._gone.discard(device)
            if device not in joined:  # else it has said so itself
                note("device_back", f"Device {device} is back.", device=device)

    def available(self, state: RunState, link: LinkState | None) -> BoolArray:
        """Devices that are online and whose channel is known.

        A resumed round is played with the devices that were online when it began, not with those online now: the same
        devices are asked, what they had done they answer from their disks, and who is gone is charged as planned.
        """
        available = np.zeros(self.table.size, dtype=bool)
        available[list(self._again(state) or self.present)] = True
        if link is not None and self.settings.channel != "simulated":
            available &= link.uplink.gain > 0
        return available

    def link_state(self, state: RunState) -> LinkState | None:
        """The channel of this round, with measured or reported gains where there are any."""
        link, gains = super().link_state(state), self._gains(state)
        return link if link is None or gains is None else self.inventory.with_gains(link, gains)

    def exchange(self, state: RunState, conditions: Conditions, decision: Decision, message: Message) -> Replies:
        """Send the chosen devices their messages, wait for answers, and judge every one."""
        decided_s, sent_bytes = time.perf_counter(), self.courier.sent_bytes
        planned, (_, decision) = decision.chosen, self.broadcast(conditions, decision)
        masked = self._masked_round(state, decision)
        formats = self.experiment.algorithm.upload_format(state.server) if masked is None else KEYS
        session = {} if masked is None else {"session": masked.session}
        contents, most = self._messages(state, decision, message, session), most_bytes(formats)
        self._target.write_asked(state.round, np.flatnonzero(conditions.observation.available).tolist())
        answers = self.courier.ask(contents, "train", str(state.round), self.settings.deadline_s, most)
        answered_s = time.perf_counter()
        questions = self._questions(state, decision, formats)
        verdicts = {device: judge(questions[device], answer) for device, answer in sorted(answers.items())}
        # Of what cannot be read, and of what is masked, the declared size counts.
        looked_at = {} if masked is not None else {d: v.upload for d, v in verdicts.items() if v.upload is not None}
        sizes = {device: sent_bits(upload, formats) for device, upload in looked_at.items()}
        verdicts = self._lose_in_outage(verdicts, conditions, decision)
        sums = None
        if masked is not None:
            sums, verdicts = masked.settle(verdicts)
        for device, verdict in verdicts.items():
            if verdict.changed:
                self.roster.forget(device)
            if verdict.gain is not None:
                self._reported[device] = verdict.gain
        correct = {device: verdict.correct for device, verdict in verdicts.items() if verdict.correct is not None}
        uploads = [verdict.upload for verdict in verdicts.values() if verdict.upload is not None]
        # Robust rules ignore how many samples an upload claims, or bound that themselves.
        weighs = getattr(self.experiment.algorithm, "aggregation", "mean") == "mean"
        uploads, capped = cap_weights(uploads, formats, self.settings.largest_weight if weighs else 1.0)
        compute_j, upload_j = _spent(decision, verdicts, answers, self._again(state))
        self.judged_s = time.perf_counter()
        self.round_facts = {
            "round": state.round,
            "time": iso(time.time()),
            "decide_s": decided_s - self._started_s,
            "wait_s": answered_s - decided_s,
            "judge_s": self.judged_s - answered_s,
            "sent_bytes": self.courier.sent_bytes - sent_bytes,
            "answers": {str(device): _answer_facts(answer, verdicts[device]) for device, answer in answers.items()},
            "correct": {str(device): count for device, count in correct.items()},
            "available": int(conditions.observation.available.sum()),
            **({} if masked is None else {"secure": masked.facts}),
        }
        return Replies(
            uploads=uploads,
            usable=sum(verdict.usable for verdict in verdicts.values()),
            sums=sums,
            compute_energy_j=compute_j,
            upload_energy_j=upload_j,
            time_s=self.judged_s - self._started_s,
            sent=[device for device, answer in sorted(answers.items()) if isinstance(answer, Answer)],
            sent_bits=sizes,
            correct=correct,
            missed=np.flatnonzero(planned & ~decision.chosen).tolist(),
            lost=[device for device, verdict in verdicts.items() if verdict.lost],
            rejected=[
                Rejection(device, verdict.refusal.code, verdict.refusal.facts).to_dict()
                for device, verdict in verdicts.items()
                if verdict.refusal is not None
            ],
            faults=[fault for verdict in verdicts.values() for fault in verdict.faults],
            clipped=[
                *(cut for verdict in verdicts.values() for cut in verdict.clipped),
                *(c.to_dict() for c in capped),
            ],
            diverged=[device for device, verdict in verdicts.items() if verdict.diverged],
        )

    def evaluate(self, state: RunState, devices: Collection[int]) -> IntArray:
        """Counts come with the replies; before the first round, with the profiles."""
        return state.correct if state.round else self._counts(state, self.roster.members)

    def describe_devices(self) -> Iterable[dict[str, Any]]:
        """For each device that joined its number, model, parameters, samples, classes, and its spent privacy."""
        for device, member in sorted(self.roster.members.items()):
            profile = member.profile
            privacy = self.privacy.record(device, profile)
            yield {
                "device": device,
                "model": profile.model,
                "parameters": profile.parameters,
                "samples": profile.samples,
                "classes": [c for c, count in enumerate(profile.samples_per_class) if count],
                **({} if privacy is None else {"privacy": privacy}),
            }

    def _again(self, state: RunState) -> frozenset[int]:
        """Devices of a round that a process which died had begun: they may have worked for it. Mostly none."""
        number, devices = self._asked
        return devices & self.roster.members.keys() if number == state.round else frozenset()

    def _take_stock(self) -> None:
        self.beliefs = self.roster.beliefs()
        profiles = {device: belief.profile for device, belief in self.beliefs.items()}
        server = self.experiment.algorithm.server_init(self.engine, self.experiment.seed)
        shared, network = self.engine.shared, self.engine.profile(0).model
        self.inventory = Inventory.build(self.experiment, profiles, server, shared, network).as_believed(self.beliefs)
        self._tell_of_cuts()
        summation = summation_of(self.experiment.algorithm) if self.settings.secure_sums else None
        if summation is not None:
            bits = masked_bits(summation, server, self.settings, self.experiment.devices)
            self.inventory = self.inventory.with_masks(*bits)
        self.table, self.cell = self.inventory.table, self.inventory.cell

    def _tell_of_cuts(self) -> None:
        """A line for each claim that is not believed, once."""
        for device, belief in self.beliefs.items():
            for cut in belief.cuts:
                if (device, cut["field"]) not in self._told:
                    self._told.add((device, cut["field"]))
                    sentence = f"Device {device} says too much: {describe(*stored_refusal(cut))}."
                    warn("claim_cut", sentence, device=device, code=cut["code"], field=cut["field"])

    def _counts(self, state: RunState, devices: Iterable[int]) -> IntArray:
        """Right predictions, with the profiles' counts for these devices."""
        correct = state.correct.copy()
        if self.experiment.algorithm.predicts_alone:  # others have no model before their first round
            for device in devices:
                correct[device] = self.beliefs[device].correct(self.roster.members[device].profile.correct)
        return correct

    def _gains(self, state: RunState) -> FloatArray | None:
        """Channel gains of this round, NaN where unknown; None for the simulated channel."""
        if self.settings.channel == "simulated":
            return None
        if self._measured is not None:
            return self._measured(state.round)
        gains = np.full(self.table.size, np.nan)
        for device, belief in self.beliefs.items():
            gain = self._reported.get(device, belief.profile.gain)
            gains[device] = np.nan if gain is None else gain
        return gains

    def _masked_round(self, state: RunState, decision: Decision) -> MaskedRound | None:
        """How the uploads of this round are added unseen; None where the server sees them."""
        summation = summation_of(self.experiment.algorithm) if self.settings.secure_sums else None
        chosen = np.flatnonzero(decision.chosen).tolist()
        if summation is None:
            return None
        nodes, group = {device: self.roster.members[device].node for device in chosen}, str(state.round)

        def ask(contents: Mapping[int, Parts], deadline_s: float, most: int) -> Mapping[int, Answer | NoReply]:
            addressed = {device: (nodes[device], parts) for device, parts in contents.items()}
            return self.courier.ask(addressed, "query", group, deadline_s, most)

        formats = self.experiment.algorithm.upload_format(state.server)
        noise = max((form.noise for form in formats.values()), default=0.0)
        weights, largest = self.table.samples[chosen, None], self.settings.largest_weight
        most = weight_limits(weights, largest) if chosen and largest < 1 else np.inf
        samples = float(np.minimum(weights, most).max(initial=1.0))
        return MaskedRound(
            settings=self.settings,
            summation=summation,
            server=state.server,
            run=self.roster.run,
            round=state.round,
            samples=samples + 10 * noise,
            ask=ask,
            weights={} if noise else {device: float(self.beliefs[device].samples) for device in chosen},
            lowered=[device for device in chosen if self.beliefs[device].weight_cut is not None],
        )

    def _messages(
        self, state: RunState, decision: Decision, message: Message, more: Values
    ) -> dict[int, tuple[int, Parts]]:
        """For each chosen device its node and its message: what all get, and advice of its own."""
        deadline_s = self.settings.deadline_s
        question = {**self.roster.question("round", deadline_s), **more}
        tables: dict[int, Values] = {}
        for device in np.flatnonzero(decision.chosen).tolist():
            advice = Advice(
                round=state.round,
                share=float(decision.share[device]),
                power_w=float(decision.power_w[device]),
                upload_time_s=float(decision.upload_time_s[device]),
                compute_energy_j=float(decision.compute_energy_j[device]),
                upload_energy_j=float(decision.upload_energy_j[device]),
                deadline_s=deadline_s,
                clock_hz=0.0 if decision.clock_hz is None else float(decision.clock_hz[device]),
            )
            tables[device] = {**question, **asdict(advice)}
        packed = pack_all(tables, message)
        return {device: (self.roster.members[device].node, parts) for device, parts in packed.items()}

    def _questions(self, state: RunState, decision: Decision, formats: UploadFormat) -> dict[int, Question]:
        """What each chosen device was asked, for the judgment of its answer."""
        return {
            device: Question(
                round=state.round,
                device=device,
                profile=self.roster.members[device].profile,
                belief=self.beliefs[device],
                formats=formats,
                limits=energy_limits(
                    self.settings.max_compute_power_w,
                    self._radio_power_w(device),
                    self.settings.deadline_s,
                    float(decision.compute_energy_j[device]),
                    float(decision.upload_energy_j[device]),
                    least_compute_j=self._least_compute_j(device, float(decision.compute_energy_j[device])),
                    radiated_j=float(decision.power_w[device] * decision.upload_time_s[device]),
                ),
                deadline_s=self.settings.deadline_s,
            )
            for device in np.flatnonzero(decision.chosen).tolist()
        }

    def _least_compute_j(self, device: int, planned_j: float) -> float:
        """What a device's work takes at least: the plan where that is its meter, otherwise what physics asks for."""
        if self.roster.members[device].profile.meter == "formula":
            return planned_j
        return LEAST_J_PER_FLOP * float(self.table.flops[device])

    def _radio_power_w(self, device: int) -> float:
        """The most that a device's radio draws; without a cell the transmit power its profile says, or 1 W."""
        if self.cell is not None:
            radio = self.cell.hardware
            amplifier_w = radio.max_power_w[device] / radio.amplifier_efficiency[device]
            return float(amplifier_w + radio.circuit_power_w[device])
        own = self.beliefs[device].profile.max_power_w
        return 1.0 if own is None else own

    def _lose_in_outage(
        self, verdicts: Mapping[int, Verdict], conditions: Conditions, decision: Decision
    ) -> dict[int, Verdict]:
        """Lose uploads as the simulator does, where the channel is simulated and not known exactly."""
        if conditions.link is None or self.settings.channel != "simulated":
            return dict(verdicts)
        outage = conditions.link.outage(decision.share, decision.power_w, decision.upload_time_s)
        return {d: v.lost_in_outage(d) if v.usable and outage[d] else v for d, v in verdicts.items()}


def _spent(
    decision: Decision,
    verdicts: Mapping[int, Verdict],
    answers: Mapping[int, Answer | NoReply],
    again: Collection[int] = (),
) -> tuple[FloatArray, FloatArray]:
    """Joules of each device: what it reported, or the plan where nothing believable came.

    A device that is silent may have worked and sent; it is charged as planned, so that queues never underestimate.
    Only one whose message never left the server, now or before the round was played `again`, has spent nothing.
    """
    compute_j, upload_j = decision.energy_j()
    for device, verdict in verdicts.items():
        answer = answers[device]
        if verdict.energy_j is not None:
            compute_j[device], upload_j[device] = verdict.energy_j
        elif isinstance(answer, NoReply) and answer.kind == "unsent" and device not in again:
            compute_j[device] = upload_j[device] = 0.0
    return compute_j, upload_j


def _answer_facts(answer: Answer | NoReply, verdict: Verdict) -> dict[str, Any]:
    """How long an answer took, how large it is, which upload it holds; how long the device worked, if that can be."""
    if isinstance(answer, NoReply):
        return {"seconds": answer.seconds, "silence": answer.kind}
    facts: dict[str, Any] = {"seconds": answer.seconds, "bytes": answer.bytes, "upload": answer.digest}
    return facts if verdict.work_s is None else {**facts, "work_s": verdict.work_s}
