"""The commands of kfl as a completion script, which shtab writes for each shell.

What shtab does not know is added here: run folders, lists with commas, words or else a file, and that bash splits
--radio=nb in three.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kfl._version import __version__
from kfl.cli.command_table import INNER, Argument, Command
from kfl.core.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")

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


def script(shell: str, commands: Sequence[Command]) -> str:
    """The completion script for a shell."""
    try:
        import shtab
    except ImportError as problem:
        raise MissingExtraError("shtab", "cli", "Shell completion") from problem
    lists = {option.name: option for command in commands for option in command.options if option.kind == "list"}
    functions = [f'{_function(name)}() {{ _kfl_list "$1" "{" ".join(one.words)}"; }}' for name, one in lists.items()]
    either = {o.name: " ".join(o.words) for command in commands for o in command.options if o.kind == "words or file"}
    functions += [
        f'{_function(name)}() {{ compgen -W "{words}" -- "$1" || compgen -f -- "$1"; }}'
        for name, words in either.items()
    ]
    in_zsh = "".join(f"{_function(name)}() {{ compadd -- {words}; _files }}\n" for name, words in either.items())
    preamble = {"bash": _BASH + "\n".join(functions), "zsh": _ZSH + in_zsh, "fish": _FISH}
    made: str = shtab.complete(_program(commands), shell, preamble=preamble[shell])
    head, _, rest = made.partition("\n")
    made = f"{head}\n# Completion of the command kfl {__version__}, printed by: kfl completion {shell}\n{rest}\n"
    # shtab registers the function where the script is evaluated; where it is sourced, too.
    made = made.replace("$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)")
    return made + (_BASH_END % "|".join(lists) if shell == "bash" else "")


def _program(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """All commands as one parser, which is all that shtab reads."""
    top = argparse.ArgumentParser("kfl")
    top.add_argument("--version", action="store_true", help="print the version")
    branches: dict[tuple[str, ...], Any] = {(): top.add_subparsers()}
    for command in commands:
        about = _escaped(command.help)
        parser = branches[command.path[:-1]].add_parser(command.path[-1], help=about, description=about)
        for argument in command.arguments:
            if argument.name == INNER:
                branches[command.path] = parser.add_subparsers()
            elif argument.name != "--help":
                _add(parser, argument)
    return top


def _add(parser: argparse.ArgumentParser, argument: Argument) -> None:
    about = _escaped(argument.help) or None
    if argument.kind == "none":
        parser.add_argument(argument.name, action="store_true", help=about)
        return
    count = None if argument.name.startswith("-") else "*"
    action: Any = parser.add_argument(argument.name, help=about, metavar="VALUE", nargs=count)
    if argument.kind == "words":
        action.choices = argument.words
    elif argument.kind == "list":
        words = " ".join(argument.words)
        action.complete = {"bash": _function(argument.name), "zsh": f"_sequence compadd - {words}", "fish": words}
    elif argument.kind == "words or file":
        name, words = _function(argument.name), " ".join(argument.words)
        action.complete = {"bash": name, "zsh": name, "fish": f"{words} (__fish_complete_path (commandline -ct))"}
    elif argument.kind == "run":
        action.complete = {"bash": "_kfl_runs_dir", "zsh": "_kfl_runs", "fish": "(__kfl_runs)"}
    elif argument.kind in ("file", "folder"):
        action.complete = {"file": "file", "folder": "directory"}[argument.kind]


def _function(option: str) -> str:
    """The function that completes the values of an option."""
    return "_kfl_values_" + option.lstrip("-").replace("-", "_")


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
