"""What devices hold at the end of a run, one safetensors file per device in the folder `models/` of a run folder.

Safetensors are plain arrays with names: reading one never executes code, as a pickle would. Only devices that
ever trained have a file; any other device is still its seed. A device that keeps nothing between rounds, as in
federated averaging, has no file either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import KflError, RunFolderError
from kfl.core.files import write_atomic

if TYPE_CHECKING:
    from kfl.models import State

FOLDER = "models"


def state_path(run: Path, device: int) -> Path:
    """Where a device's state lies in a run folder.

    >>> state_path(Path("runs/mine"), 12).as_posix()
    'runs/mine/models/device-00012.safetensors'
    """
    return run / FOLDER / f"{device_name(device)}.safetensors"


def device_name(device: int) -> str:
    """The name of a device's files."""
    return f"device-{device:05d}"


def write_states(run: Path, states: Mapping[int, State]) -> None:
    """Write every state that holds anything; each file is whole or not there."""
    (run / FOLDER).mkdir(exist_ok=True)
    for device, state in states.items():
        if state:
            write_atomic(state_path(run, device), as_safetensors(state))


def as_safetensors(state: State, metadata: Mapping[str, str] | None = None) -> bytes:
    """A state as the bytes of a safetensors file."""
    from safetensors.torch import save

    # Cloned, because safetensors refuses two names for one memory, which a view or a tied layer has.
    arrays = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    data: bytes = save(arrays, metadata=None if metadata is None else dict(metadata))
    return data


def read_state(run: Path, device: int) -> State | None:
    """A device's state from a run folder; None where it has no file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = state_path(run, device)
    if not path.exists():
        return None
    try:
        return load(path.read_bytes())
    except (SafetensorError, OSError) as problem:
        raise RunFolderError(f"The model file {path} is damaged ({problem}).") from problem


def require_safetensors() -> None:
    """Raise a sentence where the package is missing."""
    try:
        import safetensors.torch  # noqa: F401  # whether it imports is the question
    except ImportError as problem:
        raise KflError(
            "Keeping models needs the package 'safetensors', which is not installed: pip install safetensors, "
            "or run with keep_models=False (kfl run --no-models)."
        ) from problem
