"""`kfl completion`: a script that makes the Tab key know kfl's commands, options, names and run folders.

shtab writes the script for each shell. What it does not know is added here: run folders, lists with commas, words or
else a file, and that bash splits --radio=nb in three.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

import kfl.cli.main as command_line
from kfl._version import __version__
from kfl.cli.flags import Flag, flags_of
from kfl.cli.options import (
    ALGORITHM_NAMES,
    MODELS,
    RADIO_NAMES,
    SCHEDULER_NAMES,
    OptionsListed,
    list_options,
    parse,
)
from kfl.comparison.presets import SENSORS_NAME
from kfl.comparison.twins import METHODS
from kfl.core.errors import KflError
from kfl.core.terminal import tell_exactly
from kfl.data import DATASETS
from kfl.models import WIDTHS
from kfl.report.trackers import TRACKERS

DESCRIPTION = """Print a completion script for your shell. Once:

  bash:  kfl completion bash > ~/.local/share/bash-completion/completions/kfl   (make the folder first)
  zsh:   kfl completion zsh > ~/.zfunc/_kfl   (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish:  kfl completion fish > ~/.config/fish/completions/kfl.fish

Then open a new shell. The script holds all names, so that the Tab key need not start Python; print it again after
an upgrade."""


@dataclass(frozen=True)
class CompletionOptions:
    """What `kfl completion` takes."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")]
    """Which shell: bash, zsh or fish."""


def main(arguments: Sequence[str]) -> int:
    """Parse, collect every command, print the script."""
    options = parse(CompletionOptions, arguments, "kfl completion", DESCRIPTION)
    tell_exactly(script(options.shell))
    sys.stdout.flush()
    return 0


LISTS: dict[str, Sequence[str]] = {
    "--algorithms": tuple(dict.fromkeys((*ALGORITHM_NAMES, *METHODS))),
    "--schedulers": SCHEDULER_NAMES,
    "--model": ("auto", *WIDTHS),
    "--track": tuple(TRACKERS),
}
"""Options that take several words with commas between."""
WORDS: dict[str, Sequence[str]] = {
    "--algorithm": ALGORITHM_NAMES,
    "--reference": ALGORITHM_NAMES,
    "--scheduler": SCHEDULER_NAMES,
    "--radio": RADIO_NAMES,
    "--preset": RADIO_NAMES[2:],
    **{f"--radio.{field}": tuple(kind.registry()) for field, kind in MODELS.items()},
}
"""Options whose values have names that their type does not tell."""
CELLS = (SENSORS_NAME, *RADIO_NAMES[2:])
"""The names of cells, where an option asks for one."""
WORDS_OR_FILE: dict[str, Sequence[str]] = {"--dataset": tuple(DATASETS)}

_BASH = """
_kfl_list() {  # several words with commas between: complete the last
  local before=""
  [[ $1 == *,* ]] && before="${1%,*},"
  compgen -P "$before" -W "$2" -- "${1##*,}"
}
_kfl_runs_dir() {  # run folders here and under runs/; elsewhere any folder
  local path found=""
  for path in "$1"*/config.toml runs/"$1"*/config.toml; do
    [[ -e $path ]] && printf '%s\\n' "${path%/config.toml}" && found=1
  done
  [[ $found ]] || compgen -d -- "$1"
}
"""
_BASH_END = """
_kfl() {
  local word current=$COMP_CWORD index=-1
  local -a words=()
  for word in "${COMP_WORDS[@]}"; do  # bash makes three words of --radio=nb
    ((++index))
    if [[ $word == = ]] && ((index < COMP_CWORD)); then ((current--)); else words+=("$word"); fi
  done
  [[ ${words[current]} == = ]] && words[current]=""
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$current
  _shtab_kfl
  ((current == 1)) && [[ -z ${words[1]} ]] && COMPREPLY+=(--help --version)
  case ${words[current - 1]} in %s) compopt -o nospace 2>/dev/null ;; esac
  return 0
}
complete -F _kfl kfl
"""
_ZSH = """
_kfl_runs() {
  local -a found=($~PREFIX*/config.toml(N:h) runs/$~PREFIX*/config.toml(N:h))
  if (( $#found )); then compadd -U -f -a found; else _files -/; fi
}
"""
_FISH = """
function __kfl_runs
    for found in (commandline -ct)*/config.toml runs/(commandline -ct)*/config.toml
        string replace -r '/config.toml$' '' -- $found
    end
    __fish_complete_directories
end
"""


def script(shell: str) -> str:
    """The completion script for a shell."""
    import shtab

    functions = [f'{_function(name)}() {{ _kfl_list "$1" "{" ".join(words)}"; }}' for name, words in LISTS.items()]
    either = {name: " ".join(words) for name, words in WORDS_OR_FILE.items()}
    functions += [
        f'{_function(name)}() {{ compgen -W "{words}" -- "$1" || compgen -f -- "$1"; }}'
        for name, words in either.items()
    ]
    in_zsh = "".join(f"{_function(name)}() {{ compadd -- {words}; _files }}\n" for name, words in either.items())
    preamble = {"bash": _BASH + "\n".join(functions), "zsh": _ZSH + in_zsh, "fish": _FISH}
    made: str = shtab.complete(program(), shell, preamble=preamble[shell])
    head, _, rest = made.partition("\n")
    made = f"{head}\n# Completion of the command kfl {__version__}, printed by: kfl completion {shell}\n{rest}\n"
    # shtab registers the function where the script is evaluated; where it is sourced, too.
    made = made.replace("$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)")
    return made + (_BASH_END % "|".join(LISTS) if shell == "bash" else "")


@cache
def program() -> argparse.ArgumentParser:
    """All commands as one parser, which is all that shtab reads."""
    top = argparse.ArgumentParser("kfl")
    top.add_argument("--version", action="store_true", help="print the version")
    branch = top.add_subparsers()
    for name, (address, about) in {**command_line.COMMANDS, **command_line.added_commands()}.items():
        parser = branch.add_parser(name, help=_escaped(about), description=_escaped(about))
        nested = getattr(importlib.import_module(address.partition(":")[0]), "COMMANDS", {})
        if not nested:
            _add_options(parser, address)
            continue
        twigs = parser.add_subparsers()
        for word, (inner, line) in nested.items():
            _add_options(twigs.add_parser(word, help=_escaped(line), description=_escaped(line)), inner)
    return top


def _add_options(parser: argparse.ArgumentParser, address: str) -> None:
    """Add what a command takes."""
    for flag in flags_of_command(address):
        for name in (flag.name, flag.opposite) if flag.opposite else (flag.name,):
            _add(parser, name, flag)


def flags_of_command(address: str) -> Iterator[Flag]:
    """What a command takes, as it tells when it would parse its words."""
    own = getattr(importlib.import_module(address.partition(":")[0]), "ARGS", None)  # kfl doctor, which needs no tyro
    if own is not None:
        yield from flags_of(own)
        return
    token = list_options.set(True)
    try:
        command_line.serve(address, [])
    except OptionsListed as asked:
        yield from flags_of(asked.cls, asked.default)
    except KflError:
        return
    finally:
        list_options.reset(token)


def _add(parser: argparse.ArgumentParser, name: str, flag: Flag) -> None:
    about = _escaped(flag.help) or None
    if flag.hint is bool:
        parser.add_argument(name, action="store_true", help=about)
        return
    action: Any = parser.add_argument(name, help=about, metavar="VALUE", nargs="*" if flag.positional else None)
    words = _words(flag)
    if words:
        action.choices = words
    elif name in LISTS:
        line = " ".join(LISTS[name])
        action.complete = {"bash": _function(name), "zsh": f"_sequence compadd - {line}", "fish": line}
    elif name in WORDS_OR_FILE:
        function, line = _function(name), " ".join(WORDS_OR_FILE[name])
        in_fish = f"{line} (__fish_complete_path (commandline -ct))"
        action.complete = {"bash": function, "zsh": function, "fish": in_fish}
    elif "RUN" in flag.metavar:
        action.complete = {"bash": "_kfl_runs_dir", "zsh": "_kfl_runs", "fish": "(__kfl_runs)"}
    elif "FOLDER" in flag.metavar or "FILE" in flag.metavar or name == "--availability-trace":
        action.complete = "directory" if "FOLDER" in flag.metavar else "file"


def _words(flag: Flag) -> Sequence[str]:
    """The words that an option takes: those of its type, or those of a table."""
    if flag.metavar == "CELL":
        return CELLS
    kinds = (flag.hint, *get_args(flag.hint))  # of X | None, too
    chosen = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return tuple(map(str, chosen)) or WORDS.get(flag.name, ())


def _function(option: str) -> str:
    """The function that completes the values of an option."""
    return "_kfl_values_" + option.lstrip("-").replace("-", "_")


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
