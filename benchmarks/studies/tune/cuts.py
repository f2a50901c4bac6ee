"""The training networks of a zoo in folds, and scores that the selection of an epoch does not flatter."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.networks import Corpus, Parts, accuracies
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.studies.predict import scores
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.quantiles import Quantiles

__all__ = ["crossed", "cut", "halved", "require_differences"]

HALVES = ("first", "second")


def cut(corpus: Corpus, folds: int, number: int, seed: int) -> Corpus:
    """The training networks alone, those of one fold for validation; no others are in it.

    Args:
        corpus: of which only ``train`` is looked at.
        folds: how many.
        number: of the fold.
        seed: of the cuts.
    """
    count = sum(map(len, corpus.train))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "folds")))
    fold = torch.empty(count, dtype=torch.long)
    fold[order] = torch.arange(count) % folds
    train, val = (_chosen(corpus.train, mask) for mask in (fold != number, fold == number))
    return replace(corpus, train=train, val=val, test=())


def _chosen(parts: Parts, mask: Tensor) -> Parts:
    own = torch.split(mask, [len(part) for part in parts])
    pairs = zip(parts, own, strict=True)
    found = [(part, chosen.nonzero().flatten()) for part, chosen in pairs]
    return tuple(replace(part, networks=part.networks.subset(index)) for part, index in found if len(index))


def halved(logits: Tensor, accuracy: Tensor, quantiles: Quantiles | None = None) -> dict[str, float]:
    """`scores`, and tau of every second network, from the first and from the second on."""
    taus = {name: scores(logits[i :: len(HALVES)], accuracy[i :: len(HALVES)])["tau"] for i, name in enumerate(HALVES)}
    return {**scores(logits, accuracy, quantiles), **taus}


def crossed(validations: Iterable[Mapping[str, float]]) -> float:
    """Tau of one half at the epoch that the other half selects, and the other way round: the mean.

    Args:
        validations: metrics of every epoch that was validated, of which `halved` are.
    """
    found = list(validations)
    first, second = HALVES
    return statistics.fmean(
        max(found, key=lambda metrics: metrics[one])[other] for one, other in ((first, second), (second, first))
    )


def require_differences(corpus: Corpus) -> None:
    """Check that tau can be told of both halves of the validation networks.

    Raises:
        ValueError: if a half has fewer than three networks, or all its accuracies are equal.
    """
    accuracy = accuracies(corpus.val)
    halves = [accuracy[i :: len(HALVES)].tolist() for i in range(len(HALVES))]
    if any(len(half) < 3 or len(set(half)) < 2 for half in halves):
        raise InvalidValueError(
            f"{len(accuracy)} {corpus.activation} networks to judge a recipe on, too few that differ in accuracy: use "
            "a larger zoo, or fewer folds"
        )
