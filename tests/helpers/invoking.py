"""Commands as a user types them, in this process."""

from __future__ import annotations

import re

from typer.testing import CliRunner, Result

from nfn_monomial.tools.cli.application import app


def invoke(*arguments: object) -> Result:
    """What a command did, in a terminal without colours."""
    return CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(app, [str(a) for a in arguments])


def said(*arguments: object, code: int = 0) -> str:
    """The words that a command says, line breaks apart; it ends with this code."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return plain(result.output)


def plain(text: str) -> str:
    """A text without colours, with single spaces between words."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))
