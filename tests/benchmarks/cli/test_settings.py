"""Every setting, with its type and its meaning, is in the help of its command."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from invoking import said

from nfn_monomial.benchmarks.cli.settings import settings_of
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.settings import override


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_have_a_type_and_a_meaning_and_are_shown_as_set_takes_them(name: str) -> None:
    for preset in EXPERIMENTS[name].presets.values():
        lines = list(settings_of(preset))
        assert not [line for line in lines if not line[1] or not line[3] or "<" in line[1] or "Annotated" in line[1]]
        assert override(preset, [f"{key}={value}" for key, _, value, _ in lines]) == preset


def keys(config: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        inner = keys(value, f"{prefix}{field.name}.") if dataclasses.is_dataclass(value) else [prefix + field.name]
        yield from inner


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_has_every_setting(name: str) -> None:
    text = said(*EXPERIMENTS[name].name.split(), "--help")
    preset = EXPERIMENTS[name].presets["small"]
    assert {key for key, *_ in settings_of(preset)} == set(keys(preset))
    for key, kind, value, meaning in settings_of(preset):
        start = f"{key}={value}" if len(f"{key}={value}") < 100 else f"{key}="  # which is broken by the width
        assert start in text
        assert f"({kind}): {' '.join(meaning.replace('`', '').split()[:3])}" in text


def test_help_says_what_other_presets_change() -> None:
    text = said("edit-inr", "--help")
    assert "task=dilate (dilate | contrast): " in text
    assert re.search(r"Preset paper: models=\S+, seeds=0,1,2,3,4, steps=50000, ", text)
