"""The commands of kfl as completion scripts for bash, zsh and fish."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kfl._version import __version__
from kfl.cli.command_table import INNER, Argument, Command

HEAD = f"# Completion of the command kfl {__version__}, written by: kfl completion"

_BASH = """%(head)s bash
_kfl_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }
_kfl_list() {  # several words with commas between: complete the last
  local before=""
  [[ $cur == *,* ]] && before="${cur%%,*},"
  COMPREPLY=($(compgen -P "$before" -W "$1" -- "${cur##*,}"))
  compopt -o nospace 2>/dev/null
}
_kfl_files() { compopt -o filenames 2>/dev/null; local IFS=$'\\n'; COMPREPLY=($(compgen -f -- "$cur")); }
_kfl_folders() { compopt -o filenames 2>/dev/null; local IFS=$'\\n'; COMPREPLY=($(compgen -d -- "$cur")); }
_kfl_runs() {  # run folders here and under runs/; elsewhere any folder
  compopt -o filenames 2>/dev/null
  local path IFS=$'\\n'
  COMPREPLY=()
  for path in $(compgen -G "$cur*/config.toml") $(compgen -G "runs/$cur*/config.toml"); do
    COMPREPLY+=("${path%%/config.toml}")
  done
  ((${#COMPREPLY[@]})) || COMPREPLY=($(compgen -d -- "$cur"))
}
_kfl() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  COMPREPLY=()
  if [[ $cur == = ]]; then cur=""; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
  if ((COMP_CWORD == 1)); then _kfl_words "%(commands)s --help --version"; return; fi
  case $command in
%(nested)s
  esac
  case $command:$prev in
%(values)s
  esac
  if [[ $cur == -* ]]; then
    case $command in
%(options)s
    esac
    return
  fi
  case $command in
%(positionals)s
  esac
}
complete -F _kfl kfl
"""


def bash(commands: Sequence[Command]) -> str:
    """For bash 4 and newer."""
    nested, values, options, positionals = [], [], [], []
    for command in commands:
        key = _key(command)
        if len(command.path) == 2:
            nested.append(f"    {command.path[0]}) [[ ${{COMP_WORDS[2]}} == {command.path[1]} ]] && "
                          f"((COMP_CWORD > 2)) && command={key} ;;")  # fmt: skip
        call = {argument.name: _bash_call(argument) for argument in command.options}
        values += [f"    {key}:{name}) {found}; return ;;" for name, found in call.items() if found]
        options.append(f'      {key}) _kfl_words "{" ".join(["--help", *_names(command)])}" ;;')
        first = command.positional
        if first is not None and (found := _bash_call(first)):
            positionals.append(f"    {key}) {found} ;;")
    parts = {"nested": _merged(nested), "values": values, "options": options, "positionals": positionals}
    top = " ".join(command.path[0] for command in commands if len(command.path) == 1)
    return _BASH % {"head": HEAD, "commands": top, **{name: "\n".join(lines) for name, lines in parts.items()}}


def _merged(lines: list[str]) -> list[str]:
    """Lines of one `case` word put together: the shell takes only the first that fits."""
    found: dict[str, list[str]] = {}
    for line in lines:
        word, _, rest = line.strip().partition(") ")
        found.setdefault(word, []).append(rest.removesuffix(" ;;"))
    return [f"    {word}) {'; '.join(parts)} ;;" for word, parts in found.items()]


def _bash_call(argument: Argument) -> str:
    words = " ".join(argument.words)
    calls = {"words": f'_kfl_words "{words}"', "list": f'_kfl_list "{words}"'}
    calls |= {"file": "_kfl_files", "folder": "_kfl_folders", "run": "_kfl_runs", "text": ":"}
    return calls.get(argument.kind, "")


def _key(command: Command) -> str:
    return "-".join(command.path)


def _names(command: Command) -> list[str]:
    return [option.name for option in command.options if option.name != "--help"]


_ZSH = """#compdef kfl
%(head)s zsh
_kfl_runs() {
  local -a found=($~PREFIX*/config.toml(N:h) runs/$~PREFIX*/config.toml(N:h))
  if (( $#found )); then compadd -U -f -a found; else _files -/; fi
}
_kfl() {
  local -a commands=(
%(commands)s
  )
  if (( CURRENT == 2 )); then _describe -t commands 'kfl command' commands; return; fi
  local command=$words[2]
  shift words; (( CURRENT-- ))
  case $command in
%(cases)s
  esac
}
if [[ $funcstack[1] == _kfl ]]; then _kfl "$@"; else compdef _kfl kfl; fi
"""


def zsh(commands: Sequence[Command]) -> str:
    """For zsh, as an autoloaded function or sourced after compinit."""
    top = [command for command in commands if len(command.path) == 1]
    lines = [f"    {_quoted(command.path[0] + ':' + command.help.replace(':', ' -'))}" for command in top]
    cases = []
    for command in top:
        inner = [other for other in commands if other.path[:-1] == command.path]
        if inner:
            words = " ".join(_quoted(f"{other.path[-1]}:{other.help.replace(':', ' -')}") for other in inner)
            below = [f"        {other.path[-1]}) {_zsh_arguments(other)} ;;" for other in inner]
            cases += [
                f"    {command.path[0]})",
                f"      local -a inner=({words})",
                "      if (( CURRENT == 2 )); then _describe -t commands 'kfl command' inner; return; fi",
                "      shift words; (( CURRENT-- ))",
                "      case $words[1] in",
                *below,
                "      esac ;;",
            ]
        else:
            cases.append(f"    {command.path[0]}) {_zsh_arguments(command)} ;;")
    return _ZSH % {"head": HEAD, "commands": "\n".join(lines), "cases": "\n".join(cases)}


def _zsh_arguments(command: Command) -> str:
    actions = {"file": "_files", "folder": "_files -/", "run": "_kfl_runs", "text": " "}
    specs = []
    for argument in command.arguments:
        words = " ".join(argument.words)
        action = {"words": f"({words})", "list": f"_sequence compadd - {words}"}.get(argument.kind)
        action = actions.get(argument.kind, "") if action is None else action
        about = argument.help.replace("[", "(").replace("]", ")").replace(":", " -")
        if not argument.name.startswith("-"):
            specs.append(f"*:{about or 'argument'}:{action}")
        elif argument.kind == "none":
            specs.append(f"{argument.name}[{about}]")
        else:
            specs.append(f"{argument.name}=[{about}]:value:{action}")
    return "_arguments " + " ".join(_quoted(spec) for spec in specs) if specs else ":"


_FISH = """%(head)s fish
function __kfl_runs
    for found in (commandline -ct)*/config.toml runs/(commandline -ct)*/config.toml
        string replace -r '/config.toml$' '' -- $found
    end
end
function __kfl_is
    set -l words (commandline -opc)
    test "$words[2..$(math 1 + (count $argv))]" = "$argv"
end
function __kfl_first
    test (count (commandline -opc)) -eq 1
end
complete -c kfl -f
%(lines)s
"""


def fish(commands: Sequence[Command]) -> str:
    """For fish 3 and newer."""
    lines = []
    for command in commands:
        path = " ".join(command.path)
        if len(command.path) == 1:
            lines.append(f"complete -c kfl -n __kfl_first -a {path} -d {_fish_quoted(command.help)}")
        for argument in command.arguments:
            head = f"complete -c kfl -n '__kfl_is {path}'"
            values = {"words": "-xa", "list": "-xa"}.get(argument.kind)
            tail = f" {values} {_fish_quoted(' '.join(argument.words))}" if values else _FISH_ACTIONS[argument.kind]
            if argument.name.startswith("--"):
                lines.append(f"{head} -l {argument.name[2:]} -d {_fish_quoted(argument.help)}{tail}")
            elif argument.name == INNER:  # a command of a command: only as the second word
                lines.append(f"complete -c kfl -n '__kfl_is {path}; and test (count (commandline -opc)) -eq 2'{tail}")
            elif argument.kind != "text":
                lines.append(head + tail.replace(" -xa", " -a").replace(" -rF", " -F").replace(" -x ", " "))
    return _FISH % {"head": HEAD, "lines": "\n".join(lines)}


_FISH_ACTIONS = {
    "none": "",
    "text": " -x",
    "file": " -rF",
    "folder": " -xa '(__fish_complete_directories)'",
    "run": " -xa '(__kfl_runs; __fish_complete_directories)'",
}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""The script for each shell."""
