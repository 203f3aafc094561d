"""Snapshots on the way of a run: the knowledge and every device's accuracy, after at most fifty of the rounds.

Which rounds are kept depends on their number alone, so a run that was killed and resumed keeps the same ones. Arrays
are base64 of little-endian numbers: knowledge as float16 of its largest magnitude, which is finer than any plot, and
accuracy as float32. A line of a hundred devices and ten classes of 64 numbers takes about two kilobytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.parse import parse_json

if TYPE_CHECKING:
    from kfl.algorithms import Algorithm
    from kfl.models import State
    from kfl.simulation.logs import RoundLog
    from kfl.simulation.state import RunState

MOST_SNAPSHOTS = 50
MOST_DEVICES = 10_000
"""Larger fleets keep no accuracy per device on the way; at the end it is in devices.json."""
MOST_VALUES = 200_000
"""Knowledge of more numbers than this is not kept on the way."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after one round, as far as a page shows it.

    >>> snapshot = Snapshot(3, np.array([[1.0, -2.0]]), np.array([True]), np.array([0.5, np.nan]))
    >>> again = Snapshot.from_line(snapshot.to_line())
    >>> again.round, again.knowledge.tolist(), again.accuracy.tolist()
    (3, [[1.0, -2.0]], [0.5, nan])
    """

    round: int
    """Counted from 0; this is how things were after it."""
    knowledge: FloatArray | None = None
    """One row per class; None for an algorithm without knowledge."""
    known: NDArray[np.bool_] | None = None
    """Which classes the knowledge covers."""
    accuracy: FloatArray | None = None
    """Per device; NaN for one without test samples. None in a round without a test."""

    def to_line(self) -> str:
        """One line of JSON, without its end."""
        values: dict[str, Any] = {"round": self.round}
        if self.knowledge is not None and self.known is not None:
            scale = float(np.abs(self.knowledge).max(initial=0.0)) or 1.0
            values["knowledge"] = _pack(self.knowledge / scale, "<f2")
            values["scale"] = scale
            values["known"] = [int(flag) for flag in self.known]
        if self.accuracy is not None:
            values["accuracy"] = _pack(self.accuracy, "<f4")
        return json.dumps(values)

    @staticmethod
    def from_line(line: str) -> Snapshot:
        """Read what `to_line` wrote; ValueError for anything else."""
        values = parse_json(line)
        if not isinstance(values, dict) or type(values.get("round")) is not int:
            raise ValueError("it is not a snapshot with a round")
        knowledge, known = None, None
        if "knowledge" in values:
            known = np.array(values.get("known"), dtype=bool)
            scale = values.get("scale")
            if known.ndim != 1 or not known.size or type(scale) is not float or not 0 < scale < np.inf:
                raise ValueError("it does not say which classes are known")
            flat = _unpack(values["knowledge"], "<f2")
            if flat.size % known.size or not (np.abs(flat) <= 1).all():
                raise ValueError(f"its knowledge of {known.size} classes has {flat.size} numbers, or too large ones")
            knowledge = flat.reshape(known.size, -1) * scale
        accuracy = _unpack(values["accuracy"], "<f4") if "accuracy" in values else None
        if accuracy is not None and not (np.isnan(accuracy) | ((accuracy >= 0) & (accuracy <= 1))).all():
            raise ValueError("its accuracies are not all from 0 to 1")
        return Snapshot(values["round"], knowledge, known, accuracy)


def snapshot(
    rounds: int, tests: NDArray[np.int64], state: RunState, log: RoundLog, algorithm: Algorithm
) -> Snapshot | None:
    """The state after one of so many rounds, if it is kept. `tests` are the test samples of each device.

    Args:
        rounds: Of the whole run.
        tests: Test samples of each device, (K,).
        state: After the round.
        log: Of the round.
        algorithm: Whose server it is.
    """
    if log.round not in kept_rounds(rounds):
        return None
    accuracy = None
    if log.accuracy is not None and len(tests) <= MOST_DEVICES:
        accuracy = np.where(tests > 0, state.correct / np.maximum(tests, 1), np.nan)
    return Snapshot(log.round, *_knowledge(algorithm, state.server), accuracy)


def _knowledge(algorithm: Algorithm, server: State) -> tuple[FloatArray | None, NDArray[np.bool_] | None]:
    """The vectors of the classes and which classes have one, where the server has any that can be kept."""
    vectors = algorithm.class_vectors(server)
    if vectors is None or not 0 < vectors[0].numel() <= MOST_VALUES:
        return None, None
    knowledge, known = vectors
    values = knowledge.cpu().numpy().astype(np.float64)
    return (values, known.cpu().numpy()) if np.isfinite(values).all() else (None, None)


@lru_cache(maxsize=8)
def kept_rounds(rounds: int) -> frozenset[int]:
    """Which of so many rounds are kept: all up to fifty, else fifty evenly spread, the first and last among them.

    >>> sorted(kept_rounds(3)), len(kept_rounds(1000)), {0, 999} <= kept_rounds(1000)
    ([0, 1, 2], 50, True)
    """
    count = min(rounds, MOST_SNAPSHOTS)
    return frozenset(int(index) for index in np.rint(np.linspace(0, rounds - 1, count)))


def round_of(line: str) -> int | None:
    """The round a line is about; None for a damaged one."""
    try:
        return Snapshot.from_line(line).round
    except ValueError:
        return None


def _pack(values: FloatArray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def _unpack(text: object, kind: str) -> FloatArray:
    if not isinstance(text, str):
        raise ValueError("it holds no array")
    raw = base64.b64decode(text.encode(), validate=True)
    with np.errstate(invalid="ignore"):  # damaged bytes may be a signaling NaN
        return np.frombuffer(raw, kind).astype(np.float64)
