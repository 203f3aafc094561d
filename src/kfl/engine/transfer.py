"""Many small tensors from a GPU to the CPU in few copies.

A copy from a GPU waits for everything before it. Ten uploads of two arrays each, checked and added up one by one,
are dozens of such waits; brought over together they are one for each name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def to_cpu(messages: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The same messages on the CPU. Arrays of one name, shape and type travel together.

    >>> to_cpu([{"a": torch.zeros(2)}, {"a": torch.ones(2)}])[1]
    {'a': tensor([1., 1.])}
    """
    found = [dict(message) for message in messages]
    groups: dict[tuple[str, torch.Size, torch.dtype, torch.device], list[int]] = {}
    for place, message in enumerate(messages):
        for name, value in message.items():
            if value.device.type != "cpu":
                groups.setdefault((name, value.shape, value.dtype, value.device), []).append(place)
    arrived = {
        key: torch.stack([messages[place][key[0]] for place in places]).to("cpu", non_blocking=False)
        for key, places in groups.items()
    }
    for (name, *_), places, stacked in zip(groups, groups.values(), arrived.values(), strict=True):
        for place, value in zip(places, stacked.unbind(0), strict=True):
            found[place][name] = value
    return found
