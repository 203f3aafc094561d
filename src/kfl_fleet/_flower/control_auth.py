"""Flower's SuperLink and SuperExec, with a gate: `python -m kfl_fleet._flower.control_auth superlink …`.

Scripts of a project say `kfl deploy superlink …`. Both programs are Flower's own and take its options. Besides:

    control interface   anyone who may use it can send code to all devices, without authentication in Flower. Here a
                        request must carry the secret in FILE, which `flwr` finds in the project's FLWR_HOME: any device
                        that can read the project's keys is admitted, another user of the machine is not
    fleet interface     what a device sends is bounded before it is stored (`limits`)
    tokens              SuperExec would hand a server app its token as an argument, which every user of the machine
                        can read. Here the app reads it from an open file that has no name
    what is written     database, apps and logs are private, and a crash leaves no memory behind

Flower's fleet interface (signed with a device's key) and runtime interface (a task's token, or the secret of the
SuperExec) ask who is there by themselves.
"""

from __future__ import annotations

import hmac
import importlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kfl.core.errors import KflError, MissingExtraError
from kfl.core.telemetry import hush
from kfl_fleet._flower import limits
from kfl_fleet.logs import warn
from kfl_fleet.private import exposed, keep_private, narrow

CONTROL = "--control-secret"
USAGE = "kfl deploy superlink --control-secret FILE …, or kfl deploy superexec …"
SHORTEST = 32
"""Characters of a secret."""


def main(arguments: Sequence[str]) -> int:
    """Become one of Flower's two programs."""
    keep_private()
    hush()
    try:
        name, *rest = arguments or [""]
        if name not in PROGRAMS:
            raise KflError(f"{name!r} is no program of Flower's server: {USAGE}")
        sentence = exposed(Path(value) for option, value in _pairs(rest) if option in SECRET_FILES)
        if sentence is not None:
            warn("key_exposed", sentence)
        start = PROGRAMS[name](rest)
    except KflError as problem:
        print(f"kfl: {problem}", file=sys.stderr)
        return problem.exit_status
    start()
    return 0


# ── The SuperLink ────────────────────────────────────────────────────────────


def superlink(arguments: list[str]) -> Callable[[], None]:
    """Flower's SuperLink, whose control interface asks for the secret."""
    given = dict(_pairs(arguments))
    if CONTROL not in given:
        raise KflError(f"The SuperLink needs {CONTROL} FILE, the secret that admits to its control interface.")
    secret = read_secret(Path(given[CONTROL]))
    at = arguments.index(CONTROL)
    database = Path(given.get("--database", ""))
    for path in database.parent.glob(f"{database.name}*") if database.name else ():
        narrow(path)
    program = _flower("flwr.superlink.cli.flower_superlink")
    program.load_control_authn_plugin = lambda: gatekeeper(secret)
    limits.install(_flower("flwr.superlink.extensions"), _flower("flwr.superlink.main"))
    sys.argv = ["flower-superlink", *arguments[:at], *arguments[at + 2 :]]
    start: Callable[[], None] = program.flower_superlink
    return start


def read_secret(path: Path) -> str:
    """The secret of the control interface; KflError where there is none."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise KflError(
            f"The secret of the control interface, {path}, cannot be read ({reason}); kfl deploy keys makes it."
        ) from None
    if len(secret) < SHORTEST:
        raise KflError(f"The secret in {path} is too short; remove it and run kfl deploy keys.")
    return secret


def gatekeeper(secret: str) -> Any:
    """Flower's plug for accounts: one account, for anyone who knows the secret."""
    from flwr.common.constant import ACCESS_TOKEN_KEY
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    class Gatekeeper(NoOpControlAuthnPlugin):
        """The account of a SuperLink without accounts, so that earlier runs stay its own; but not for everyone else."""

        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
            """Whether a request carries the secret, and the account."""
            for key, value in metadata:
                shown = value if isinstance(value, bytes) else value.encode()
                if key == ACCESS_TOKEN_KEY and hmac.compare_digest(shown, secret.encode()):
                    account: tuple[bool, Any] = super().validate_tokens_in_metadata(metadata)
                    return account
            return False, None

        def refresh_tokens(self, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
            """There is nothing to refresh: the secret is right or wrong."""
            raise FlowerError(
                ApiErrorCode.NO_ACCOUNT_AUTH, "The secret is not this SuperLink's: see keys/control.secret."
            )

    return Gatekeeper()


# ── The SuperExec ────────────────────────────────────────────────────────────


def superexec(arguments: list[str]) -> Callable[[], None]:
    """Flower's SuperExec, whose server apps find their token in an open file."""
    program = _flower("flwr.supercore.cli.flower_superexec")
    executor = _flower("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=start_with_token, DEVNULL=subprocess.DEVNULL)
    sys.argv = ["flower-superexec", *arguments]
    start: Callable[[], None] = program.flower_superexec
    return start


def start_with_token(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program of Flower's; the token in its command goes into a file without a name, which it inherits."""
    if "--token" not in command:
        return subprocess.Popen(command, **options)
    at = command.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(command[at + 1].encode())
        file.flush()
        file.seek(0)
        told = [*command[:at], "--token-file", f"/dev/fd/{file.fileno()}", *command[at + 2 :]]
        return subprocess.Popen(told, pass_fds=(file.fileno(),), **options)


PROGRAMS: dict[str, Callable[[list[str]], Callable[[], None]]] = {"superlink": superlink, "superexec": superexec}
SECRET_FILES = (CONTROL, "--ssl-keyfile", "--superexec-auth-secret-file")
"""Options whose files must be private."""


def _flower(name: str) -> Any:
    """A module of Flower's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as in kfl_fleet._flower.names
        try:
            return importlib.import_module(name)
        except ImportError as problem:
            raise MissingExtraError("flwr", "fleet", "The server of a fleet") from problem


def _pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Options that have a value, each with its own."""
    return [pair for pair in pairwise(arguments) if pair[0].startswith("--")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
