"""What a shell completes: read from the parsers of all commands, so that nothing is listed twice.

    source <(failover completion bash)

Flags complete behind a dash, and their values where they are of a list; sub-commands and choices; else files.
What this file may not do: know any command.
"""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

DISTRIBUTIONS = ("gpu-failover", "gpu-failover-local-pod")
SHELLS = ("bash", "fish", "zsh")
_BODY = """\
    for word in "${{before[@]}}"; do
        [ "$word" = -- ] && return 1
        case "$at $word" in {commands}) at="$at $word" ;; esac
        last=$word
    done
    case "$at $last" in
        {with_values}
        *) case "$current $at" in
            {known}
        esac ;;
    esac
"""
_BASH = """\
_gpu_failover() {{
    local at=${{COMP_WORDS[0]##*/}} current=${{COMP_WORDS[COMP_CWORD]}} word last= known=
    local before=("${{COMP_WORDS[@]:1:COMP_CWORD-1}}")
{body}    COMPREPLY=($(compgen -W "$known" -- "$current"))
}}
complete -o default -F _gpu_failover {programs}
"""
_ZSH = """\
#compdef {programs}
_gpu_failover_known() {{
{body}}}
_gpu_failover() {{
    local at=${{words[1]:t}} current=$PREFIX word last= known= before=(${{words[2,CURRENT-1]}})
    _gpu_failover_known && [[ -n $known ]] && compadd -- ${{=known}} || _files
}}
if [[ ${{funcstack[1]}} == _failover ]]; then _gpu_failover; else compdef _gpu_failover {programs}; fi
"""


def programs() -> dict[str, argparse.ArgumentParser]:
    """What each installed command of ours takes."""
    from importlib.metadata import entry_points  # which takes time: no other command needs it

    found = {}
    for script in sorted(entry_points(group="console_scripts")):
        if script.dist is not None and script.dist.name in DISTRIBUTIONS:
            found[script.name] = import_module(script.module).parser()
    return found


def commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A program and its sub-commands, with the words that call them."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from commands(f"{name} {word}", inner)


def flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {each.option_strings[-1]: each for each in parser._actions if each.option_strings}


def words(parser: argparse.ArgumentParser) -> list[str]:
    """What may stand there without a dash: sub-commands and choices."""
    return [word for each in parser._actions if not each.option_strings for word in values(each)]


def values(action: argparse.Action) -> list[str]:
    """One of these is taken; empty where it isn't a list. A setting names them in its metavar."""
    if action.choices is not None:
        return [str(each) for each in action.choices]
    named = action.metavar if isinstance(action.metavar, str) else ""
    return named.split("|") if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", named) else []


def script(shell: str, of: Mapping[str, argparse.ArgumentParser]) -> str:
    everything = {name: parser for each in of for name, parser in commands(each, of[each])}
    if shell == "fish":
        return "".join(f"{line}\n" for name in everything for line in _fish(name, everything[name]))
    valued: dict[str, list[str]] = {}  # a list of values -> the flags that take it
    for name, parser in everything.items():
        for flag, action in flags(parser).items():
            if action.nargs != 0:
                valued.setdefault(" ".join(values(action)), []).append(f"{name} {flag}")
    known = []
    for name, parser in everything.items():
        known.append(f'"-"*" {name}") known="{" ".join(flags(parser))}" ;;')
        known += [f'*" {name}") known="{" ".join(words(parser))}" ;;'] if words(parser) else []
    body = _BODY.format(
        commands=_patterns(name for name in everything if " " in name),
        with_values="\n        ".join(f'{_patterns(names)}) known="{each}" ;;' for each, names in valued.items()),
        known="\n            ".join(known),
    )
    return (_BASH if shell == "bash" else _ZSH).format(body=body, programs=" ".join(of))


def _patterns(names: Iterable[str]) -> str:
    return "|".join(f'"{name}"' for name in names)


def _fish(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    program, _, command = name.partition(" ")
    inner = " ".join(words(parser))
    when = f"__fish_seen_subcommand_from {command}" if command else f"not __fish_seen_subcommand_from {inner}"
    begin = f"complete -c {program}" + (f" -n {shlex.quote(when)}" if command or inner else "")
    if inner:
        yield f"{begin} -f -a {shlex.quote(inner)}"
    for flag, action in flags(parser).items():
        takes = f" -x -a {shlex.quote(' '.join(values(action)))}" if values(action) else " -r"
        said = (action.help or "").replace("%%", "%").partition(" [")[0]
        yield f"{begin} -l {flag.lstrip('-')}{'' if action.nargs == 0 else takes} -d {shlex.quote(said)}"
