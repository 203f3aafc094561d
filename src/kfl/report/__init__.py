"""Pages made from run folders, live pages, the playground, and trackers.

>>> import tempfile, kfl, numpy as np
>>> from pathlib import Path
>>> from kfl.report import build_report
>>> y = np.arange(200) % 4
>>> data = kfl.Dataset.from_arrays(np.random.default_rng(0).random((200, 6)) + y[:, None], y)
>>> folder = Path(tempfile.mkdtemp()) / "run"
>>> history = kfl.run(kfl.Experiment(devices=4, rounds=2, widths=(8,)), folder, dataset=data)
>>> build_report([folder]).name
'report.html'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.report.live import watch_server
    from kfl.report.page import build_report
    from kfl.report.playground import playground_server
    from kfl.report.run_data import read_run
    from kfl.report.trackers import Tracker, Tracking

_LAZY = {
    "build_report": "kfl.report.page",
    "watch_server": "kfl.report.live",
    "playground_server": "kfl.report.playground",
    "read_run": "kfl.report.run_data",
    "Tracker": "kfl.report.trackers",
    "Tracking": "kfl.report.trackers",
}


def __getattr__(name: str) -> Any:
    return lazy_exports(__name__, _LAZY, name)


__all__ = ["Tracker", "Tracking", "build_report", "playground_server", "read_run", "watch_server"]
