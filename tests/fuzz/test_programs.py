"""Random programs: their groups and normal forms hold at every size, and verdicts say no more than is so.

``FUZZ=1000 pytest tests/fuzz/test_programs.py -s`` tries so many, and prints what came of them.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from fuzz.programs import Program, inputs, program
from torch import Tensor
from torch.func import functional_call

from nfn_monomial import WeightSpace, compare, normal_form
from nfn_monomial.errors import MonomialError
from nfn_monomial.fibre import NormalForm, compare_fibres

FIRST, COUNT = int(os.environ.get("FUZZ_FIRST", 0)), int(os.environ.get("FUZZ", 4))
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
State = dict[str, Tensor]
outcomes: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def told() -> Iterator[None]:
    yield
    print("\n" + "\n".join(f"{count:>6}  {what}" for what, count in sorted(outcomes.items())))


def count_refusal(what: str, error: MonomialError) -> None:
    assert "\n" not in str(error), error
    outcomes[f"{what} refused: {str(error)[:90]}"] += 1


def change(module: Program, a: State, b: State, x: Tensor) -> float:
    """The largest change of any output, relative to the largest."""
    with torch.no_grad():
        one, other = (functional_call(module, narrowed(s, torch.float64), (x,)) for s in (a, b))
    return float((one - other).abs().max() / one.abs().max())


def sizes(module: Program, x: Tensor) -> Iterator[Tensor]:
    """Inputs of other sizes, at which the module runs."""
    torch.manual_seed(0)
    batch, tokens = x.shape[:2]
    longer = [(batch, n) for n in (tokens - 1, tokens + 1, 2 * tokens, 3 * tokens, 7)]
    for b, t in [(batch, tokens), (batch + 1, tokens), *longer]:
        other = inputs(module, b, t)
        try:
            with torch.no_grad():
                module(other)
        except RuntimeError:
            continue
        yield other


def narrowed(state: State, dtype: torch.dtype) -> State:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in state.items()}


def holds(state: State, dtype: torch.dtype) -> bool:
    """Whether a dtype has room for a network, and for small changes of it."""
    most = torch.finfo(dtype).max / 2
    return all(bool((t.abs() < most).all()) for t in state.values())


def near_misses(names: list[str], generator: torch.Generator) -> Iterator[tuple[str, Callable[[State], State]]]:
    """Small changes of a network: of all entries, of one, of two rows of one tensor."""

    def everywhere(a: State, make: Callable[[Tensor], Tensor]) -> State:
        return a | {n: make(a[n].double()).to(a[n].dtype) for n in names}

    def noise(t: Tensor) -> Tensor:
        return torch.randn(t.shape, dtype=t.dtype, generator=generator)

    def entry(a: State, factor: float) -> State:
        name = names[int(torch.randint(len(names), (), generator=generator))]
        t = a[name].clone(memory_format=torch.contiguous_format)
        t.view(-1)[int(torch.randint(t.numel(), (), generator=generator))] *= factor
        return a | {name: t}

    def rows(a: State) -> State:
        name = next(n for n in names if a[n].ndim > 1)
        order = torch.arange(len(a[name]))
        order[:2] = order[:2].flip(0)
        return a | {name: a[name][order]}

    yield "steps", lambda a: everywhere(a, lambda t: t + 2e-4 * noise(t).sign())
    yield "noise of 0.1 %", lambda a: everywhere(a, lambda t: t * (1 + 1e-3 * noise(t)))
    yield "noise of 1 %", lambda a: everywhere(a, lambda t: t * (1 + 1e-2 * noise(t)))
    yield "an entry by 10 %", lambda a: entry(a, 1.1)
    yield "a sign", lambda a: entry(a, -1)
    yield "two rows", rows


def judge(said: str, what: str, dtype: torch.dtype, difference: float) -> None:
    """Fails where a verdict says more than is so; counts it otherwise."""
    short = str(dtype)[6:]
    word = said.split(":")[0].split(",")[0]
    outcomes[f"{what}, {short}: {word}"] += 1
    rounding = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}[dtype]
    if what.startswith("copy"):
        assert not said.startswith("not the same"), said
    elif word == "the same function":
        assert difference < rounding / 1e3, f"{what} in {short}: outputs change by {difference:.1e}, but {said}"
    elif word.startswith("within"):
        assert difference < rounding, f"{what} in {short}: outputs change by {difference:.1e}, but {said}"
    elif word == "not the same":
        assert difference > 1e-9, f"{what} in {short}: outputs change by {difference:.1e}, but {said}"


SEEDS = [*range(FIRST, FIRST + COUNT), *([] if "FUZZ" in os.environ else [6092])]  # whose scales are not determined


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_said_that_is_not_so(seed: int) -> None:
    module, x = program(seed)
    label = module.label
    try:
        space = WeightSpace.from_module(module, x)
    except MonomialError as error:
        count_refusal("from_module", error)
        return
    outcomes["derived"] += 1
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    state = {n: t.detach().clone() for n, t in module.state_dict().items()}
    element = space.sample(generator=generator, scale_range=(0.5, 2)).proper()
    moved = {**state, **element.act({n: state[n] for n in space.parameters})}
    for other in sizes(module, x):
        assert change(module, state, moved, other) < 1e-8, f"{label}: group at {tuple(other.shape)}"
    form: NormalForm | None = None
    try:
        form = normal_form(module, x)
        outcomes["normal forms"] += 1
    except MonomialError as error:
        count_refusal("normal_form", error)
    turned = moved
    if form is not None:
        turned = {**state, **form.sample({n: state[n] for n in form.whole.parameters}, generator=generator)}
        for other in sizes(module, x):
            assert change(module, state, turned, other) < 1e-7, f"{label}: fibre at {tuple(other.shape)}"
    names = [name for name, _ in module.named_parameters() if name in space.parameters]
    turned_in = rng.sample(DTYPES, 2)  # normal forms take long
    for dtype in DTYPES:
        fibres = form if dtype in turned_in else None
        one, copy, turn = (narrowed(t, dtype) for t in (state, moved, turned))
        if not all(holds(network, dtype) for network in (state, moved, turned)):
            outcomes[f"left out, as {dtype} does not hold it"] += 1
            continue
        judge(compare(space, one, copy, module=module, inputs=x).verdict, "copy by the group", dtype, 0)
        if fibres is not None:
            judge(compare_fibres(fibres, one, turn).verdict, "copy by the fibre", dtype, 0)
        misses = list(near_misses(names, generator))
        for what, miss in rng.sample(misses, 2):
            base, by = rng.choice([(one, ""), (copy, ", moved")])
            other = miss(base)
            judge(
                compare(space, one, other, module=module, inputs=x).verdict,
                what + by,
                dtype,
                change(module, one, other, x),
            )
            if fibres is not None:
                base, by = rng.choice([(one, ""), (turn, ", turned")])
                other = miss(base)
                verdict = compare_fibres(fibres, one, other).verdict
                judge(verdict, what + by + ", fibres", dtype, change(module, one, other, x))
