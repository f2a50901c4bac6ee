"""The networks of the experiment: moved, widened and augmented ones are others that compute the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_zoo import corpus
from torch import Tensor

from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.formats.made import MadeZoo
from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.data.moves import augment, test_sets, transform, widened
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, accuracies, fingerprint, groups_of
from nfn_monomial.benchmarks.make.config import ZooConfig
from nfn_monomial.benchmarks.make.zoo import make_zoo


def outputs(corpus: Corpus, parts: Any, x: Tensor) -> Tensor:
    """Returns the networks' answers to images, by their templates: ``(N, b, 10)``, in order of the parts."""
    outputs = []
    for part, (tensors, _) in zip(parts, groups_of(parts), strict=True):
        assert part.info.template is not None
        assert part.info.input_shape == x.shape[1:]
        module = part.info.template()
        names = [name for name, _ in module.named_parameters()]
        outputs.append(network_outputs(module, dict(zip(names, tensors.values(), strict=True)), x))
    return torch.cat(outputs)


@pytest.mark.parametrize("kind", ["digits", "mixed"])
def test_templates_compute_the_stored_accuracies(kind: str, mixed: Corpus, tmp_path: Path) -> None:
    zoo = mixed
    if kind == "digits":
        make_zoo(tmp_path, ZooConfig(networks=20, activations=("tanh",), epochs=(1, 2), train_fractions=(0.1,)))
        zoo = MadeZoo.load(tmp_path)["tanh"]
    images = load_images("digits")
    x, y = images.x[images.test], images.y[images.test]
    logits = outputs(zoo, zoo.test, x)
    accuracy = (logits.argmax(-1) == y).float().mean(1)
    torch.testing.assert_close(accuracy, accuracies(zoo.test), rtol=0, atol=1.5 / len(y))  # rounding: one image
    assert accuracies(zoo.test).std() > 0.01
    # Widened networks, and moved ones, are others that compute the same.
    for other in (widened(zoo.test, 1.5, seed=0), transform(zoo.test, 10.0, seed=0)):
        torch.testing.assert_close(outputs(zoo, other, x), logits, rtol=1e-3, atol=1e-3)
        assert torch.equal(accuracies(other), accuracies(zoo.test))
        for part, before in zip(other, zoo.test, strict=True):
            assert not torch.equal(part.networks.tensors["bias.0"], before.networks.tensors["bias.0"])
            part.info.space.validate({name: t.unsqueeze(1) for name, t in part.networks.tensors.items()})


def test_test_sets_of_a_seed_are_always_the_same(zoo: Corpus) -> None:
    first, again, other = (list(test_sets(zoo, (1e1, 1e6), 1.5, seed)) for seed in (0, 0, 1))
    named = [("original", None), ("scale 10", 1e1), ("scale 1e+06", 1e6), ("widened", None)]
    assert [(name, scale) for name, scale, _ in first] == named
    weights = [[parts[0].networks.tensors["weight.1"] for *_, parts in sets] for sets in (first, again, other)]
    for name, a, b, c in zip((name for name, _ in named), *weights, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (name == "original")
    sizes = [parts[0].networks.tensors["bias.0"].abs().max() for *_, parts in first[:3]]
    assert sizes[0] < sizes[1] < sizes[2]
    assert weights[0][-1].shape[1:3] == (8, 6), "5 and 4 neurons, and half as many again"
    assert [name for name, *_ in test_sets(zoo, (1e1,), 0, 0)] == ["original", "scale 10"]


def test_widened_networks_are_permuted_but_not_flipped() -> None:
    zoo = corpus("tanh")
    before, after = (p[0].networks.tensors["bias.0"] for p in (zoo.test, widened(zoo.test, 1.5, seed=0)))
    assert all(set(b.tolist()) == set(a.tolist()) for a, b in zip(after, before, strict=True))
    assert not torch.equal(before, after[:, : before.shape[1]])


def test_augmented_set_is_the_original_and_a_moved_copy(zoo: Corpus, mixed: Corpus) -> None:
    (train,) = zoo.train
    n = len(train)
    (twice,) = augment(zoo.train, (1e1, 1e6), seed=0)
    assert len(twice) == 2 * n
    assert torch.equal(twice.networks.accuracy, torch.cat([train.networks.accuracy] * 2))
    for name, t in train.networks.tensors.items():
        assert torch.equal(twice.networks.tensors[name][:n], t)
    biases = twice.networks.tensors["bias.0"].abs().amax(1)
    factor = biases[n:] / biases[:n]
    assert 0.2 < (factor > 100).float().mean() < 0.8, "both ranges occur"
    (one,) = augment(zoo.train, (1e1,), seed=0)
    assert one.networks.tensors["bias.0"].abs().max() < 11 * train.networks.tensors["bias.0"].abs().max()
    assert [len(part) for part in augment(mixed.train, (1e1,), seed=0)] == [2 * len(part) for part in mixed.train]


def test_fingerprint_sees_every_number(zoo: Corpus) -> None:
    base = fingerprint(zoo)
    assert fingerprint(corpus("relu")) == base
    assert fingerprint(replace(zoo, activation="abs")) != base
    networks = zoo.val[0].networks
    accuracy = networks.accuracy.clone()
    accuracy[-1] += 1e-3
    changed = replace(zoo.val[0], networks=Networks(networks.tensors, accuracy))
    assert fingerprint(replace(zoo, val=(changed,))) != base
