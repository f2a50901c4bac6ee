"""What there is, listed: models, formats, and every setting with its meaning."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from invoking import said

from nfn_monomial.benchmarks.cli.show import settings_of
from nfn_monomial.benchmarks.data.formats.detection import FORMATS
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.models.editors import editor_names
from nfn_monomial.benchmarks.settings import override


def test_models() -> None:
    words = said("list", "models").split()
    for name in (*model_names("generalization"), *model_names("inr"), *editor_names(), "mnf-3-hnp"):
        assert name in words


def test_formats() -> None:
    text = said("list", "formats")
    for name in FORMATS:
        assert name in text.split()
    assert "split_order" in text
    assert "on_progress" not in text


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


def test_settings_are_listed() -> None:
    text = said("list", "settings", "edit-inr")
    for key in keys(EXPERIMENTS["edit-inr"].presets["small"]):
        assert key in text.split()
    assert "dilate | contrast" in text
    everything = said("list", "settings")
    assert all(f"{name}, preset small of " in everything for name in EXPERIMENTS)
    assert "classify-inr, preset paper-cifar" in said("list", "settings", "classify-inr", "--preset", "paper-cifar")
    assert "unknown experiment 'edit': choose from" in said("list", "settings", "edit", code=2)
    assert "params has no preset" in said("list", "settings", "params", "--preset", "paper", code=2)
