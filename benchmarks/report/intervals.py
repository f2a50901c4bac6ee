"""Intervals of differences between models, counted again from the answers that runs keep.

Two models are compared on the same test networks, so their numbers vary together, and much less apart from one another.
The interval of a difference has both of its sources:

- *test networks*: they are drawn again with replacement, the same ones for both models and all seeds (the paired
  bootstrap), and the number of every run is counted on them;
- *training*: the differences of seeds that both models have, as they are on all test networks. They are few, so their
  mean is drawn from Student's distribution about itself: two or three seeds that are drawn again from one another vary
  too little. Over several zoos it is the means over these, because a seed begins with the same weights in all of them.

Seeds also differ because there are few test networks. That part counts twice, so intervals are rather too wide: 0 to 5
of 100 intervals of two equal models leave out 0. One seed says nothing of training, and so has no interval.

Seeds that draw their own training networks from one set share some of them, by which they differ too little. What they
show of training is then widened, as if training networks were all that varies: with a share r in common, the variance
of a mean over S seeds is theirs times (r + (1 - r) / S) / (1 - r), not 1 / S (cf. Nadeau and Bengio, Inference for the
generalization error, Machine Learning 52, 2003). So an interval is of any training networks from there. Where all seeds
have the same ones, it is of these networks, also where other models or zoos of a comparison have seeds that draw
theirs. It is always of these zoos, not of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from nfn_monomial.errors import InvalidValueError

__all__ = ["Interval", "Outcomes", "difference", "mean_difference", "mean_of", "paired", "ranks"]

DRAWS = 2000
LEVEL = 0.95

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """The answers of a model's runs on one set of test networks.

    Attributes:
        seeds: one run of each.
        answers: ``(seeds, N)``: a score of every network, whose mean is the number of a run. With true values it is the
            prediction, and the number is Kendall's tau-b.
        true: ``(N,)``, or None.
        networks: that a run was trained on.
        steps: that a run was trained for.
        before: of the same runs: then a run's number is how far it is above the one there.
        shared: the share of their training networks that two seeds have in common on average, if each draws its own;
            less than 1, and 0 where all have the same ones.
    """

    seeds: tuple[int, ...]
    answers: Array
    true: Array | None
    networks: int
    steps: int
    before: Outcomes | None = None
    shared: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.shared < 1:
            raise InvalidValueError(f"shared is {self.shared}, but should be from 0 to below 1; 0 for all the same")
        if self.answers.ndim != 2 or len(self.answers) != len(self.seeds):
            raise InvalidValueError(
                f"answers has shape {self.answers.shape}, but should have a line for each of {len(self.seeds)} seeds"
            )
        if self.true is not None and self.true.shape != self.answers.shape[1:]:
            raise InvalidValueError(f"true has shape {self.true.shape}, but should have {self.answers.shape[1:]}")

    def of(self, seeds: tuple[int, ...]) -> Outcomes:
        """Returns the runs of these seeds alone."""
        if seeds == self.seeds:
            return self
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=seeds, answers=self.answers[rows], before=self.before and self.before.of(seeds))

    def since(self, before: Outcomes | None) -> Outcomes | None:
        """Returns how far the runs are above ``before``, of the seeds that both have; None if there are none."""
        both = paired(self, before)
        return both and replace(both[0], before=both[1])

    @cached_property
    def drawn(self) -> Array:
        """The numbers ``(seeds, 1 + DRAWS)`` on all test networks, and on each draw of them."""
        drawn = self.numbers(_draws(self.answers.shape[1]))
        return drawn if self.before is None else drawn - self.before.drawn

    @property
    def mean(self) -> float:
        """The mean of the runs' numbers on all test networks."""
        return float(self.drawn[:, 0].mean())

    def numbers(self, counts: Array) -> Array:
        """The numbers ``(seeds, D)`` on test networks that occur so often ``(D, N)``."""
        if self.true is None:
            means: Array = self.answers @ counts.T / counts.sum(1)
            return means
        true = _order(self.true)
        pairs_of_true = _sums(true * true, counts)
        taus = []
        for answers in self.answers:
            order = _order(answers)
            pairs = pairs_of_true * _sums(order * order, counts)
            agreeing = _sums(order * true, counts)
            taus.append(np.divide(agreeing, np.sqrt(pairs), out=np.zeros_like(agreeing), where=pairs > 0))
        return np.stack(taus)


@dataclass(frozen=True)
class Interval:
    """A mean or a difference, and the ends of its 95 % interval; None if there is one seed."""

    mean: float
    low: float | None
    high: float | None

    def show(self, digits: int = 3, times: float = 1, sign: str = "+") -> str:
        """Returns the number and its ends; ``sign``: of positive ones, ``-`` for none."""
        # A small number has its sign, by which one sees on which side of 0 it is, but no sign of rounding.
        numbers = [round(times * x, 12) + 0.0 for x in (self.mean, self.low, self.high) if x is not None]
        mean, *ends = (f"{x:{sign}.{digits}f}" for x in numbers)
        return f"{mean} ({' to '.join(ends)})" if ends else mean


def paired(first: Outcomes | None, second: Outcomes | None) -> tuple[Outcomes, Outcomes] | None:
    """Returns the two, of the seeds that they have in common; None if there are none, or one was not kept."""
    common = tuple(seed for seed in first.seeds if seed in second.seeds) if first and second else ()
    if first is None or second is None or not common:
        return None
    return first.of(common), second.of(common)


def difference(first: Outcomes, second: Outcomes) -> Interval:
    """Returns the first number minus the second, over the seeds that both have.

    Raises:
        ValueError: if they are not of the same test networks, or have no seed in common.
    """
    return mean_difference([(first, second)])


def mean_difference(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> Interval:
    """Returns the mean of the differences of pairs that are of independent test networks, such as those of zoos.

    The seeds are those that all pairs have.

    Raises:
        ValueError: as `difference`.
    """
    every = [outcomes for pair in pairs for outcomes in pair]
    seeds = _common(every)
    return _interval([_by_seed(*pair, seeds) for pair in pairs], _widened(every, len(seeds)))


def mean_of(several: Sequence[Outcomes]) -> Interval:
    """Returns the mean of a model's numbers on independent sets of test networks, over the seeds that all have.

    Raises:
        ValueError: if they have no seed in common.
    """
    seeds = _common(several)
    numbers = [outcomes.drawn[[outcomes.seeds.index(seed) for seed in seeds]] for outcomes in several]
    return _interval(numbers, _widened(several, len(seeds)))


def _common(several: Sequence[Outcomes]) -> list[int]:
    if not several:
        raise InvalidValueError("there are no answers to count numbers from")
    every = [outcomes.seeds for outcomes in several]
    seeds = [seed for seed in every[0] if all(seed in each for each in every)]
    if not seeds:
        raise InvalidValueError(f"there is no seed in common: {', '.join(map(str, dict.fromkeys(every)))}")
    return seeds


def _widened(several: Sequence[Outcomes], seeds: int) -> float:
    """Returns the variance of a mean over seeds, as a multiple of that of one: the inverse of their number or more."""
    shared = max(outcomes.shared for outcomes in several)
    return (shared + (1 - shared) / seeds) / (1 - shared)


def _interval(each: Sequence[Array], widened: float) -> Interval:
    """Returns the interval of the mean of numbers ``(seeds, 1 + DRAWS)``, each on test networks of its own.

    ``widened``: see `_widened`.
    """
    by_seed = np.stack(each)
    trained = by_seed[:, :, 0].mean(0)
    mean = float(trained.mean())
    if len(trained) == 1:
        return Interval(mean, None, None)
    orders = [np.random.default_rng(number).permutation(DRAWS) for number in range(len(each))]  # independent zoos
    networks = np.mean([some[:, 1:].mean(0)[order] for some, order in zip(by_seed, orders, strict=True)], axis=0)
    places = (np.arange(DRAWS) + 0.5) / DRAWS  # evenly, because the ends of the distribution are far out
    training = student.ppf(np.random.default_rng(len(each)).permutation(places), len(trained) - 1)
    draws = networks + training * np.sqrt(trained.var(ddof=1) * widened)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high))


def _by_seed(first: Outcomes, second: Outcomes, seeds: Sequence[int]) -> Array:
    """Returns the differences ``(seeds, 1 + DRAWS)`` on all test networks, and on each draw of them."""
    if first.answers.shape[1:] != second.answers.shape[1:] or not _equal(first.true, second.true):
        raise InvalidValueError("two models are compared on the same test networks, but these are of different ones")
    rows = [[outcomes.seeds.index(seed) for seed in seeds] for outcomes in (first, second)]
    differences: Array = first.drawn[rows[0]] - second.drawn[rows[1]]
    return differences


def ranks(numbers: Mapping[str, float]) -> dict[str, float]:
    """Returns name -> rank, 1 for the largest number; equal ones share the mean of their ranks."""
    values = np.array(list(numbers.values()))
    larger, equal = (values > values[:, None]).sum(1), (values == values[:, None]).sum(1)
    return dict(zip(numbers, (1 + larger + (equal - 1) / 2).tolist(), strict=True))


@lru_cache(maxsize=4)
def _draws(networks: int) -> Array:
    """Returns the counts of each network ``(1 + DRAWS, N)``: once, and in each draw."""
    draws = np.random.default_rng(0).multinomial(networks, np.full(networks, 1 / networks), DRAWS)
    return np.concatenate([np.ones((1, networks)), draws])


def _order(values: Array) -> Array:
    """Signs of the differences of all pairs ``(N, N)``."""
    places = np.unique(values, return_inverse=True)[1]  # because differences of infinities are NaN
    return np.sign(places[:, None] - places[None]).astype(np.float32)  # type: ignore[no-any-return]


def _sums(pairs: Array, counts: Array) -> Array:
    """Sums ``(D,)`` over all pairs of networks of which each occurs so often."""
    weights = counts.astype(np.float32)
    return np.einsum("dn,dn->d", weights @ pairs, weights, dtype=np.float64)  # type: ignore[no-any-return]


def _equal(first: Array | None, second: Array | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)
