"""Command lines of ``nfn-monomial`` in a text, and whether the application takes them; nothing is run."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from nfn_monomial.benchmarks.cli.options import configured
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.tools.cli.application import app

SHELL = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]*\b(?:nfn-monomial|nfn_monomial.benchmarks) [^`]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")  # as in `nfn-monomial COMMAND --help`
CHOSEN = ("preset", "assignments", "models", "seeds", "seed", "device", "devices", "precision", "tensorboard")
"""Options that make a configuration."""
MODULE = "nfn_monomial.benchmarks"  # python -m, torchrun -m


def command_lines(text: str) -> list[str]:
    """The commands in the shell blocks of a Markdown text, and those that stand in its lines, without placeholders."""
    lines = [line for block in SHELL.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    rest = SHELL.sub("", text)
    inline = [" ".join(found.split()) for found in INLINE.findall(rest)]
    return [line for line in (*lines, *inline) if list(_calls(line)) and not PLACEHOLDER.search(line)]


@functools.cache
def application() -> Any:
    """The command of all commands, which takes a moment to make."""
    return typer.main.get_command(app)


def check(line: str) -> list[tuple[str, Any]]:
    """Parse every call in a line with the real application, values of ``--set`` included.

    Returns:
        The last word of each command, and the configuration that its options make of its preset, if it has one.

    Raises:
        ValueError: for a command, an option or a setting that there is not, or a value that it does not take.
    """
    found: list[tuple[str, Any]] = []
    for arguments in _calls(line):
        command = application()
        given: dict[str, Any] = {}
        for path, leaf in leaves(command):
            leaf.callback = functools.partial(_note, given, path[-1])
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                command(list(arguments), prog_name="nfn-monomial")
            except SystemExit as end:
                if end.code:
                    raise ValueError(f"{line}: {said.getvalue()}") from None
        name = given.pop("name", "")
        chosen = {option: given[option] for option in CHOSEN if option in given}
        found.append((name, configured(EXPERIMENTS[name].presets, **chosen) if name in EXPERIMENTS else None))
    return found


def _note(into: dict[str, Any], name: str, /, **values: Any) -> None:
    into.update(values, name=name)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that do something, by their names, and what they are to typer."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, found in (inner or {}).items():
        yield from leaves(found, (*path, name))


def _calls(line: str) -> Iterator[Sequence[str]]:
    """The arguments of every call of the command in a line."""
    parts = shlex.split(line, comments=True)
    calls: list[list[str]] = [[]]
    for part in parts:
        if part in ("&&", "||", "|", ";"):
            calls.append([])
        else:
            calls[-1].append(part)
    for call in calls:
        for start in ("nfn-monomial", MODULE):
            if start in call:
                yield call[call.index(start) + 1 :]
