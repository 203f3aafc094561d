"""Natural federation: sixteen people wear a sensor, and each one's device learns from its own readings.

    python examples/natural_federation.py runs/wearables.npz
    kfl data show --dataset runs/wearables.npz --split natural
    kfl run --dataset runs/wearables.npz --split natural --model sensor --widths 8 16

The readings are one file: x, y, and whose each reading is. No one cuts it into shards: people wear the sensor their own
way, move at their own pace and do some things more often than others, and that is the split.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kfl

ACTIVITIES = ("cycle", "run", "sit", "walk")
PEOPLE, CHANNELS, STEPS = 16, 3, 32


def write_readings(path: Path) -> None:
    """Made-up readings of an accelerometer. Put your own arrays here."""
    draw = np.random.default_rng(100)
    x, y, person = [], [], []
    for number in range(PEOPLE):
        turn, _ = np.linalg.qr(draw.normal(size=(CHANNELS, CHANNELS)))  # how the sensor sits on the wrist
        turn = np.eye(CHANNELS) + 0.4 * turn
        pace = draw.uniform(0.8, 1.2)
        habits = draw.dirichlet(np.full(len(ACTIVITIES), 1.5))
        for activity in draw.choice(len(ACTIVITIES), draw.integers(30, 80), p=habits):
            x.append(turn @ movement(activity, pace, draw))
            y.append(ACTIVITIES[activity])
            person.append(f"person-{number:02d}")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, x=np.array(x, dtype=np.float32), y=np.array(y), person=np.array(person))


def movement(activity: int, pace: float, draw: np.random.Generator) -> NDArray[np.float64]:
    """Three axes over time: an activity has its rhythm and its strength, and gravity on the last axis."""
    rhythm, strength = ((3.0, 0.5), (5.0, 1.5), (0.0, 0.0), (2.0, 1.0))[activity]
    phase = 2 * np.pi * (rhythm * pace * np.arange(STEPS) / STEPS + draw.random())
    axes = strength * np.stack([np.sin(phase), np.cos(phase), 0.5 * np.sin(2 * phase)])
    moved: NDArray[np.float64] = axes + np.array([[0.0], [0.0], [1.0]]) + draw.normal(scale=0.7, size=axes.shape)
    return moved


def main(path: Path) -> None:
    """Write the file, then learn from it together and alone."""
    write_readings(path)
    setting = kfl.Experiment(
        dataset=str(path), split="natural", devices=0, model="sensor", widths=(8, 16), rounds=15, seed=100
    )
    together = kfl.run(replace(setting, algorithm=kfl.Kfl(learning_rate=0.2)))
    alone = kfl.run(replace(setting, algorithm=kfl.Local(learning_rate=0.2)))
    for record in together.devices[:3]:
        print(f"{record['name']}: {record['samples']} readings, {record['model']}, {record['accuracy']:.0%} right")
    print(
        f"{len(together.devices)} people: together {together.accuracy:.1%}, alone {alone.accuracy:.1%} (one seed only)"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/wearables.npz"))
