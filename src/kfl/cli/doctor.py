"""`kfl doctor`: what is installed, which processor is used, where data was found, and what to do about the rest.

Plain Python and plain text: this command must also work where the packages of the others are missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from kfl.cli.checkup import Finding, look
from kfl.core.terminal import tell, tell_json

DESCRIPTION = """What is installed, which processor is used, where data was found, and what to do about what is missing.
Nothing is changed. Exit status: 0 when kfl can run, 2 when it cannot."""


@dataclass(frozen=True)
class DoctorArgs:
    """What `kfl doctor` takes."""

    json: bool = False
    """Print everything as JSON, for programs."""


ARGS = DoctorArgs
"""For `kfl completion`."""

MARKS = {"ok": "✓", "absent": "–", "broken": "✗"}
PLAIN_MARKS = {"ok": "ok", "absent": "--", "broken": "!!"}


def main(arguments: Sequence[str]) -> int:
    """Look, print, and say by the exit status whether kfl can run."""
    options = parser().parse_args(arguments)
    findings = list(look())
    can_run = all(finding.state != "broken" for finding in findings)
    if options.json:
        tell_json(json.dumps({"can_run": can_run, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        tell(*"\n".join(report(findings)).split("\n"))
    sys.stdout.flush()  # so that a reader who went away is noticed here
    return 0 if can_run else 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options; not tyro's, which may be what is missing."""
    made = argparse.ArgumentParser("kfl doctor", description=DESCRIPTION)
    made.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    return made


def report(findings: Sequence[Finding]) -> list[str]:
    """The findings as lines, and a last sentence with what matters most."""
    marks = MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN_MARKS
    width = max(len(finding.name) for finding in findings)
    columns = max(60, min(shutil.get_terminal_size().columns, 120))
    lines: list[str] = []
    for group, members in groupby(findings, key=lambda finding: finding.group):
        lines += ["", group]
        for finding in members:
            head = f"  {marks[finding.state]} {finding.name:<{width}}  "
            text = textwrap.wrap(finding.text, columns - len(head), break_long_words=False, break_on_hyphens=False)
            lines += [head + text[0], *(" " * len(head) + line for line in text[1:])]
            if finding.advice is not None:
                lines.append(" " * len(head) + ("→ " if marks is MARKS else "-> ") + finding.advice)
    broken = [finding for finding in findings if finding.state == "broken"]
    if broken:
        todo = "; ".join(f"{finding.name} ({finding.advice or finding.text})" for finding in broken)
        return [*lines[1:], "", f"kfl cannot run yet. Set right: {todo}."]
    missing = sum(finding.state == "absent" for finding in findings)
    rest = f"; {missing} optional things are not there, which is fine unless you need them" if missing else ""
    return [*lines[1:], "", f"kfl can run{rest}."]
