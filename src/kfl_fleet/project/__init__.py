"""The starter of a fleet: a small project with everything a server and its devices need, and the commands for it."""

from __future__ import annotations

from kfl_fleet.project.new import write_project
from kfl_fleet.project.project import Project

__all__ = ["Project", "write_project"]
