"""Whoever changes what an experiment computes is reminded to raise its version, which is in the key of what is kept."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import versions
from harness_worker import settings_of

CODE = """
def scores(values, share=0.5):
    return sum(values) * share
"""


def test_code_is_that_of_which_the_versions_are() -> None:
    table = json.loads(versions.TABLE.read_text(encoding="utf-8"))
    lines = versions.changed(table)
    assert not lines, "\n".join(lines)
    assert table["versions"] == versions.versions()


def test_versions_are_those_that_studies_use() -> None:
    modules = {name: importlib.import_module(f"nfn_monomial.benchmarks.{name.removesuffix('.py').replace('/', '.')}")
               for name in versions.versions()}  # fmt: skip
    assert {"studies/predict.py", "studies/tune.py"} <= modules.keys()
    assert versions.versions() == {name: module.VERSION for name, module in modules.items()}


def test_a_version_is_part_of_the_key_and_of_the_name() -> None:
    settings = settings_of("parts")
    raised = replace(settings, version=settings.version + 1)
    assert raised.key != settings.key
    assert raised.name != settings.name


@pytest.mark.parametrize(
    "same",
    [
        CODE.replace("\n    return", "\n    # half of it\n    return"),
        CODE.replace("\n    return", '\n    """Of the values."""\n\n    return'),
        f'"""A module."""\n{CODE}',
        CODE.replace("sum(values) * share", "(\n        sum(values)\n        * share\n    )"),
        CODE + 'SHARE = ()\n"""What it is."""\n',
    ],
)
def test_comments_docstrings_and_layout_are_no_code(same: str) -> None:
    expected = CODE + "SHARE = ()\n" if "SHARE" in same else CODE
    assert versions.code_hash(same) == versions.code_hash(expected)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("0.5", "0.25"), CODE.replace("*", "/"), CODE.replace("sum", "max"),
        CODE.replace("    return", "    values = values[1:]\n    return"), CODE.replace("* share", "* str(share)"),
        CODE.replace("* share", '* len("half")'),
    ],
)  # fmt: skip
def test_what_computes_something_else_is_other_code(other: str) -> None:
    assert versions.code_hash(other) != versions.code_hash(CODE)


def test_a_change_is_told_with_what_there_is_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"versions": versions.versions(), "code": versions.hashes()}
    for module in table["code"]:
        place = tmp_path / module
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((versions.CODE / module).read_bytes())
    monkeypatch.setattr(versions, "CODE", tmp_path)
    edited = tmp_path / "studies" / "edit.py"
    text = edited.read_text(encoding="utf-8")
    edited.write_text(text.replace("CONTRAST = 2.0", "CONTRAST = 2.0  # twice"), encoding="utf-8")
    assert versions.changed(table) == []
    edited.write_text(text.replace("CONTRAST = 2.0", "CONTRAST = 3.0"), encoding="utf-8")
    (line,) = versions.changed(table)
    assert line.startswith(
        "benchmarks/studies/edit.py has changed: if results change by it, raise VERSION in studies/edit"
    )
    assert line.endswith("in any case run `.venv/bin/python tests/helpers/versions.py`")
