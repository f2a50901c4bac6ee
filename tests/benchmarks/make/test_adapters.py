"""Adapters that are trained together: of the rank, on the images and for the steps that their plans say."""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.benchmarks.make.adapters import (
    DATA_SETS,
    RANK,
    Adapted,
    AdapterPlan,
    draw_adapters,
    train_adapters,
    train_base,
    views,
)

PLANS = [AdapterPlan(i % len(DATA_SETS), 1 + i % 3, 0.0, 1e-2, 30 - i) for i in range(9)]


@functools.cache
def base(classes: int, pixels: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, pixels), (6, 6), (classes, 6)]
    return [(torch.randn(*s, generator=generator) / s[1] ** 0.5, torch.zeros(s[0])) for s in shapes]


def trained(digits: Images, plans: list[AdapterPlan]) -> tuple[Adapted, dict[str, Tensor], Tensor]:
    module = Adapted(base(digits.classes, digits.x[0].numel()))
    return module, *train_adapters(plans, module, digits, seed=1)


def test_every_data_set_has_the_same_images_in_a_way_of_its_own(digits: Images) -> None:
    found = views(digits.x, 0)
    assert found.shape == (len(DATA_SETS), *digits.x.shape)
    pixels = digits.x.flatten(1).sort().values
    for i, shown in enumerate(found):
        own = (-shown if DATA_SETS[i] == "inverted" else shown).flatten(1).sort().values
        assert torch.equal(own, pixels)
        assert not any(torch.equal(shown, other) for other in (*found[:i], digits.x))
    assert torch.equal(found, views(digits.x, 0))


def test_adapters_have_the_rank_of_their_plans_and_learn(digits: Images) -> None:
    module, tensors, accuracy = trained(digits, PLANS)
    shown = views(digits.x, 1)
    for i, plan in enumerate(PLANS):
        own = {name: t[i] for name, t in tensors.items()}
        for layer in range(3):
            down, up = own[f"down.{layer}"], own[f"up.{layer}"]
            assert down.shape[0] == up.shape[1] == RANK
            assert not down[plan.rank :].any()
            assert not up[:, plan.rank :].any()
            assert torch.linalg.matrix_rank(up @ down) == plan.rank
        x, y = (part[digits.test] for part in (shown[plan.data_set], digits.y))
        logits, before = torch.func.functional_call(module, own, (x,)), module(x)
        assert abs(float((logits.argmax(-1) == y).float().mean() - accuracy[i])) < 0.005, "a tie may turn"
        assert F.cross_entropy(logits, y) < F.cross_entropy(before, y)


def test_zeros_are_the_network_itself_and_frozen_weights_stay(digits: Images) -> None:
    module, tensors, _ = trained(digits, PLANS[:2])
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    assert names == set(tensors)
    x = digits.x[:5].flatten(1)
    for i, (weight, bias) in enumerate(base(digits.classes, digits.x[0].numel())):
        assert torch.equal(module.layers[i].weight, weight)
        x = F.linear(F.gelu(x) if i else x, weight, bias)
    torch.testing.assert_close(module(digits.x[:5]), x)


def test_wrong_labels_teach_less(digits: Images) -> None:
    plan = AdapterPlan(0, RANK, 0.0, 1e-2, 60)
    noisy = AdapterPlan(0, RANK, 1.0, 1e-2, 60)
    _, _, accuracy = trained(digits, [plan] * 3 + [noisy] * 3)
    assert accuracy[:3].min() > accuracy[3:].max() + 0.1


def test_plans_are_drawn_by_the_seed_alone() -> None:
    plans = draw_adapters(40, (5, 9), 3)
    assert plans == draw_adapters(40, (5, 9), 3) != draw_adapters(40, (5, 9), 4)
    assert {plan.rank for plan in plans} == set(range(1, RANK + 1))
    assert {plan.data_set for plan in plans} == set(range(len(DATA_SETS)))
    assert all(5 <= plan.steps <= 9 for plan in plans)


def test_the_base_learns_the_images_as_they_are(digits: Images) -> None:
    module = Adapted(train_base(digits, 12, 8, 0))
    found = module(digits.x[digits.test]).argmax(-1) == digits.y[digits.test]
    assert found.float().mean() > 0.8
