"""A fleet's rounds in words, for logs and terminals."""

from __future__ import annotations

from kfl.runfolder import RoundLog


def round_sentence(entry: RoundLog, rounds: int) -> str:
    """One line about a round, for a person who watches.

    >>> from kfl.simulation import RoundLog
    >>> round_sentence(RoundLog(0, 0.5, (1, 2), (), (), (), (), 4.2, 0, 0, None, None, "ok", lost=(2,)), 3)
    'round 1 of 3: 2 chosen, 1 used, 1 lost, accuracy 50.0 %, 4.2 s'
    """
    refused = {int(r["device"]) for r in entry.rejected}
    used = len(set(entry.devices) - set(entry.lost) - refused - set(entry.diverged))
    parts = [f"{len(entry.devices)} chosen", f"{used} used"]
    parts += [f"{len(entry.lost)} lost"] if entry.lost else []
    parts += [f"{len(refused)} refused"] if refused else []
    parts += [f"accuracy {entry.accuracy:.1%}".replace("%", " %")] if entry.accuracy is not None else []
    return f"round {entry.round + 1} of {rounds}: {', '.join(parts)}, {entry.time_s:.1f} s"
