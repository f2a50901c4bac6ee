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
from nfn_monomial.tools.cli.options import console


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
def test_every_setting_has_a_type_and_a_meaning(name: str) -> None:
    for preset in EXPERIMENTS[name].presets.values():
        lines = list(settings_of(preset))
        assert [line for line in lines if not line[1] or not line[3]] == []
        assert not [line for line in lines if "<" in line[1] or "Annotated" in line[1]]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_values_are_as_set_takes_them(name: str) -> None:
    """Setting every key to the value that is shown changes nothing."""
    for preset in EXPERIMENTS[name].presets.values():
        shown = [f"{key}={value}" for key, _, value, _ in settings_of(preset)]
        assert override(preset, shown) == preset


def test_nothing_is_cut_off_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    for what in ("models", "formats", "settings"):
        assert "…" not in said("list", what)


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
    paper = said("list", "settings", "classify-inr", "--preset", "paper-cifar")
    assert "classify-inr, preset paper-cifar" in paper
    assert "unknown experiment 'edit': choose from" in said("list", "settings", "edit", code=2)
    assert "params has no preset 'paper': choose from small" in said(
        "list", "settings", "params", "--preset", "paper", code=2
    )
