"""Completion scripts for shells, made from the table of options.

Words after the command are completed as the command's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from horovod.launch.options.table import Option, every_option

__all__ = ["completion_script"]


def completion_script(shell: str) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``."""
    return _SCRIPTS[shell]([option for option in every_option() if option.help])


def _bash(options: Sequence[Option]) -> str:
    taking = [option for option in options if not option.is_switch]
    cases = [f"    {_alternatives(option)}) {_bash_values(option)}; return ;;" for option in taking]
    spelled = " ".join(spelling for option in options for spelling in option.spellings)
    values = "\n".join(f"      {_alternatives(option)}) ((i += {option.values})) ;;" for option in taking)
    return f"""\
# Completion of horovodrun for bash. In ~/.bashrc: eval "$(horovodrun --completion bash)"
_horovodrun() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} i
  for ((i = 1; i < COMP_CWORD; i++)); do  # the command begins at the first word that is no option's
    case ${{COMP_WORDS[i]}} in
{values}
      -*) ;;
      *)
        if declare -F _command_offset >/dev/null; then _command_offset "$i"
        else COMPREPLY=($(compgen -f -- "$word")); fi
        return ;;
    esac
  done
  COMPREPLY=()
  case $before in
{chr(10).join(cases)}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "{spelled}" -- "$word")) ;;
    *) COMPREPLY=($(compgen -c -- "$word") $(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _horovodrun horovodrun
"""


def _bash_values(option: Option) -> str:
    if option.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$word"))'
    if option.name == "hosts":
        return 'COMPREPLY=($(compgen -A hostname -S : -- "$word"))'
    kinds = {"file": "-f", "directory": "-d"}
    return f'COMPREPLY=($(compgen {kinds[option.path]} -- "$word"))' if option.path else ":"


def _zsh(options: Sequence[Option]) -> str:
    lines = []
    for option in options:
        values = f":{_zsh_text(option.metavar)}:{_zsh_values(option)}" * (
            0 if option.is_switch else option.values
        )
        repeated = "*" if option.repeatable else ""
        apart = "" if option.repeatable else f"({' '.join(option.spellings)})"
        for spelling in option.spellings:
            lines.append(f"    '{apart}{repeated}{spelling}[{_zsh_text(option.help)}]{values}' \\\n")
    return f"""\
#compdef horovodrun
# Completion of horovodrun for zsh: save it as _horovodrun in a folder of $fpath.
_horovodrun() {{
  _arguments -S \\
{"".join(lines)}    '(-)1:command:_command_names -e' \\
    '*::arguments:_normal'
}}
if [ "$funcstack[1]" = _horovodrun ]; then _horovodrun "$@"; else compdef _horovodrun horovodrun; fi
"""


def _zsh_values(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    if option.name == "hosts":
        return "_hosts"
    return {"file": "_files", "directory": "_files -/", "": ""}[option.path]


def _zsh_text(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return text.replace("'", "'\\''")


def _fish(options: Sequence[Option]) -> str:
    lines = []
    for option in options:
        names = " ".join(_fish_spelling(spelling) for spelling in option.spellings)
        values = ""
        if option.choices:
            values = f" -x -a '{' '.join(option.choices)}'"
        elif option.name == "hosts":
            values = " -x -a '(__fish_print_hostnames)'"
        elif option.path:
            values = " -r -F" if option.path == "file" else " -x -a '(__fish_complete_directories)'"
        elif not option.is_switch:
            values = " -x"
        help = option.help.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c horovodrun -n __horovodrun_no_command {names}{values} -d '{help}'\n")
    taking = [spelling for option in options if not option.is_switch for spelling in option.spellings]
    return f"""\
# Completion of horovodrun for fish: save it as ~/.config/fish/completions/horovodrun.fish.
function __horovodrun_command
  # the words from the command on: the first that is neither an option nor the value of one
  set -l words (commandline -opc)
  set -e words[1]
  while set -q words[1]
    if contains -- $words[1] {" ".join(taking)}
      set -e words[1]
    else if not string match -q -- '-*' $words[1]
      printf '%s\\n' $words
      return 0
    end
    set -e words[1]
  end
  return 1
end
function __horovodrun_no_command
  not __horovodrun_command >/dev/null
end
{"".join(lines)}\
complete -c horovodrun -n __horovodrun_no_command -a '(__fish_complete_command)'
complete -c horovodrun -n 'not __horovodrun_no_command' -F
"""


def _fish_spelling(spelling: str) -> str:
    if spelling.startswith("--"):
        return f"-l {spelling[2:]}"
    return f"-s {spelling[1:]}" if len(spelling) == 2 else f"-o {spelling[1:]}"


def _alternatives(option: Option) -> str:
    return "|".join(option.spellings)


_SCRIPTS: Mapping[str, Callable[[Sequence[Option]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
