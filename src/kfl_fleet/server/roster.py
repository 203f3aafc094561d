"""Who is in the fleet: devices introduce themselves once, and each device number belongs to one node at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from kfl.core.text import scrub
from kfl_fleet.logs import note, warn
from kfl_fleet.messages.frames import pack
from kfl_fleet.messages.profile import MOST_PROFILE_BYTES, Profile, model_sizes
from kfl_fleet.messages.protocol import PROTOCOL_VERSION, RefusedError, Values, check_version
from kfl_fleet.messages.records import FleetRecord
from kfl_fleet.retry import Clock
from kfl_fleet.server.claim_limits import Belief, believe
from kfl_fleet.server.messaging import Answer, Courier, NoReply
from kfl_fleet.settings import ServerConfig

NAMED = re.compile(r"device-(\d{1,9})")
"""A node registered under such a name (`flwr supernode register --name device-3`) can only be that device."""
FIRST_PATIENCE_S = 30.0
LONGEST_PATIENCE_S = 1800.0
REST = 9.0
"""After refused nodes were asked again, none is for so many times as long as that took: rounds wait meanwhile."""


@dataclass(frozen=True)
class Member:
    """A device that has introduced itself."""

    profile: Profile
    node: int
    name: str = ""
    """Under which its key was registered at the SuperLink."""


@dataclass
class Roster:
    """The devices of a fleet, and the nodes that were refused."""

    config: ServerConfig
    run: str
    members: dict[int, Member] = field(default_factory=dict)
    refused: dict[int, tuple[Values, float, float]] = field(default_factory=dict)
    """For each node: why (a code and its facts), when to ask again, and how long to wait after that."""
    clock: Clock = Clock()  # frozen
    _rests_until_s: float = -inf
    """Until then no node that was refused is asked again."""

    def muster(self, courier: Courier, nodes: Mapping[int, str]) -> list[int]:
        """Ask every online node that is not known yet for its profile, and return the devices that joined."""
        known = {member.node for member in self.members.values()}
        strangers = [n for n in nodes if n not in known and self._may_ask(n)]
        if not strangers:
            return []
        deadline_s = self.config.fleet.profile_deadline_s
        contents = {node: (node, pack(self.question("profile", deadline_s), {})) for node in strangers}
        joined, again, began_s = [], any(node in self.refused for node in strangers), self.clock.now()
        for node, answer in courier.ask(contents, "query", "profile", deadline_s, MOST_PROFILE_BYTES).items():
            try:
                joined.append(self._admit(node, nodes, answer))
            except RefusedError as problem:
                self._refuse(node, problem)
        if again:
            now_s = self.clock.now()
            self._rests_until_s = now_s + REST * (now_s - began_s)
        return joined

    def question(self, kind: str, deadline_s: float) -> Values:
        """What every message to a device says."""
        experiment = self.config.experiment
        return {
            "protocol": PROTOCOL_VERSION,
            "kind": kind,
            "run": self.run,
            "seed": experiment.seed,
            "algorithm": json.dumps(experiment.to_table()["algorithm"]),
            "deadline_s": deadline_s,
            **({"secure": True} if self.config.fleet.secure_sums else {}),
        }

    def beliefs(self) -> dict[int, Belief]:
        """What the server believes of each device that has introduced itself."""
        profiles = {device: member.profile for device, member in self.members.items()}
        return believe(profiles, self.config.fleet, self.config.experiment.cell_config)

    def forget(self, device: int) -> None:
        """Drop a device whose data or model changed: it must introduce itself again."""
        self.members.pop(device, None)

    def present(self, nodes: Mapping[int, str]) -> dict[int, Member]:
        """The devices that are online."""
        return {device: member for device, member in sorted(self.members.items()) if member.node in nodes}

    def _admit(self, node: int, nodes: Mapping[int, str], answer: Answer | NoReply) -> int:
        if isinstance(answer, NoReply):
            raise answer.why
        check_version(answer.values)
        if answer.values.get("kind") != "profile":
            raise RefusedError("no_profile", text=scrub(answer.values.get("reason", "it did not say what it has")))
        if answer.arrays:
            raise RefusedError("unexpected_arrays")
        profile = Profile.read(answer.values)
        device, count = profile.device, self.config.experiment.devices
        if device >= count:
            raise RefusedError("no_such_device", claimed=device, last=count - 1)
        registered = NAMED.fullmatch(nodes[node])
        if registered and int(registered[1]) != device:
            raise RefusedError("other_name", claimed=device, name=registered[0])
        other = self.members.get(device)
        if other is not None and other.node in nodes and other.node != node:
            raise RefusedError("taken", claimed=device)
        self._agree(profile)
        self.members[device] = Member(profile, node, scrub(nodes[node], 64))
        self.refused.pop(node, None)
        sentence = f"Device {device} joined: {profile.samples} samples, {profile.model}."
        note("device_joined", sentence, device=device, node=str(node), samples=profile.samples)
        return device

    def _agree(self, profile: Profile) -> None:
        """Refuse a device that cannot share with the others: classes and features must have the same sizes."""
        for other in (m.profile for m in self.members.values() if m.profile.device != profile.device):
            if (profile.classes, profile.features) != (other.classes, other.features):
                raise RefusedError(
                    "other_sizes",
                    classes=profile.classes,
                    features=profile.features,
                    other_classes=other.classes,
                    other_features=other.features,
                )
        equal = self.config.experiment.algorithm.needs_equal_models
        if equal and any(model_sizes(m.profile) != model_sizes(profile) for m in self.members.values()):
            raise RefusedError("other_model")

    def _may_ask(self, node: int) -> bool:
        return node not in self.refused or self.clock.now() >= max(self.refused[node][1], self._rests_until_s)

    def _refuse(self, node: int, reason: RefusedError) -> None:
        """Note why, and ask again later, with the waiting time doubled each time: it may be repaired or restarted."""
        patience = min(self.refused[node][2] * 2, LONGEST_PATIENCE_S) if node in self.refused else FIRST_PATIENCE_S
        self.refused[node] = (reason.to_dict(), self.clock.now() + patience, patience)
        warn("node_refused", f"Node {node} cannot join: {reason}.", node=str(node), code=reason.code)

    def restore(self, record: FleetRecord) -> None:
        """Restore the devices that an earlier process of this server wrote down, so that none is asked twice.

        A device that has changed since is detected by its next answer, and asked again.
        """
        for device, entry in record.devices.items():
            if entry.profile.device == device < self.config.experiment.devices:
                self.members[device] = Member(entry.profile, int(entry.node), entry.name)

    def table(self) -> dict[str, Any]:
        """As plain values, for the run folder: what each device says, and what of it the server does not believe."""
        beliefs = self.beliefs()
        return {
            "devices": {
                str(device): {
                    "node": str(member.node),
                    "name": member.name,
                    "profile": member.profile.to_json(),
                    **({"cuts": list(beliefs[device].cuts)} if beliefs[device].cuts else {}),
                }
                for device, member in sorted(self.members.items())
            },
            "refused": {str(node): reason for node, (reason, _, _) in self.refused.items()},
        }
