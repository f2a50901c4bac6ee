"""Fibres of networks: every direction is found, and no other."""

import functools
from pathlib import Path

import pytest
import torch
from fibres import CASES, generic, null_space
from torch.utils import _pytree as pytree

from nfn_monomial.fibre import NormalForm, compare_fibres, normal_form
from nfn_monomial.running import answers, doubled, largest_change


@functools.cache
def made(name: str) -> tuple[torch.nn.Module, object, NormalForm]:
    """A network, its input and its normal form."""
    torch.manual_seed(0)
    module, inputs = CASES[name].module(), CASES[name].inputs()
    return module, pytree.tree_map_only(torch.Tensor, doubled, inputs), normal_form(module, inputs)


def drawn(module: torch.nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights, and buffers."""
    return generic(module, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CASES)
def test_every_direction_is_found_and_no_other(name: str) -> None:
    module, inputs, form = made(name)
    assert {kind: n for kind, n in form.dimensions().items() if n} == CASES[name].kinds
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert form.fibre_dimension == null_space(module, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("name", CASES)
def test_random_elements_keep_the_function_and_the_normal_form(name: str) -> None:
    module, inputs, form = made(name)
    state = drawn(module) | {n: t.double() for n, t in form.frozen.items()}
    moved = form.sample(state, generator=torch.Generator().manual_seed(1))
    expected = answers(module, state, inputs)
    assert largest_change(answers(module, state | moved, inputs), expected) < 1e-9
    comparison = compare_fibres(form, state, moved)
    assert comparison.same_function
    assert comparison.distances["between normal forms"] < 1e-8
    assert not CASES[name].kinds or comparison.distances["as they are"] > 0.1
    normal = form(moved)
    assert {n: tuple(t.shape) for n, t in normal.items()} == form.space.shapes()
    written = form.write(normal)
    assert {n: tuple(written[n].shape) for n in form.whole.parameters} == form.whole.shapes()
    assert largest_change(answers(module, state | written, inputs), expected) < 1e-9


@pytest.mark.parametrize("name", ["attention", "adapter", "layer norm", "rotary", "GRU"])
def test_other_functions_are_not_the_same(name: str) -> None:
    module, _, form = made(name)
    state = drawn(module)
    assert not compare_fibres(form, state, drawn(module, 1)).same_function
    for parameter in form.whole.parameters:
        near = {n: t.clone() for n, t in state.items()}
        near[parameter].view(-1)[-1] *= 1 + 1e-6
        moves = parameter in form.space.parameters and near[parameter].ndim > 1
        assert not moves or not compare_fibres(form, state, near).same_function


def test_the_table_of_the_documentation_has_these_numbers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api" / "fibre.md").read_text(encoding="utf-8")
    table = page.partition("<!-- fibres -->")[2].partition("<!-- end")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    assert len(rows) > 12
    for name, count, scales, fibre in rows:
        module, _, form = made(name)
        needed = sum(p.numel() for p in module.parameters() if p.requires_grad)
        found = (needed, form.whole.group_dimension, form.fibre_dimension)
        assert found == (int(count), int(scales), int(fibre)), name
