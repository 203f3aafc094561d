"""`kfl completion`: a script that makes the Tab key know kfl's commands, options, names and run folders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from kfl.cli.options import parse
from kfl.core.terminal import tell_exactly

DESCRIPTION = """Print a completion script for your shell. Once:

  bash:  kfl completion bash > ~/.local/share/bash-completion/completions/kfl   (make the folder first)
  zsh:   kfl completion zsh > ~/.zfunc/_kfl   (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish:  kfl completion fish > ~/.config/fish/completions/kfl.fish

Then open a new shell. The script holds all names, so that the Tab key need not start Python; print it again after
an upgrade."""


@dataclass(frozen=True)
class CompletionOptions:
    """What `kfl completion` takes."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Which shell."""


def main(arguments: Sequence[str]) -> int:
    """Parse, collect every command, print the script."""
    options = parse(CompletionOptions, arguments, "kfl completion", DESCRIPTION)
    from kfl.cli.command_table import commands
    from kfl.cli.completion_scripts import script

    tell_exactly(script(options.shell, commands()))
    sys.stdout.flush()
    return 0
