"""Normal forms of batches, of other dtypes, of degenerate weights; gradients; what is refused."""

import pytest
import torch
from fibres import GPT, Attention, Llama, LowRank, NormedConvolutions, encoder, generic, normal, tokens
from torch import nn

from nfn_monomial import balance
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import align_fibres, compare_fibres, normal_form
from nfn_monomial.running import answers, doubled, largest_change


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    module = GPT()
    return module, normal_form(module, tokens(11)())


def drawn(module: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    return generic(module, torch.Generator().manual_seed(seed))


def test_batches_are_networks_one_by_one(gpt) -> None:
    module, form = gpt
    states = [drawn(module, seed) for seed in range(3)]
    batch = {n: torch.stack([state[n] for state in states]).unsqueeze(1) for n in form.whole.parameters}
    together = form(batch)
    for i, state in enumerate(states):
        torch.testing.assert_close({n: t[i, 0] for n, t in together.items()}, form(state), rtol=1e-9, atol=1e-11)
    assert {n: t.shape for n, t in form.sample(batch).items()} == {n: t.shape for n, t in batch.items()}
    assert {n: t.shape for n, t in form.write(together).items()} == {n: t.shape for n, t in batch.items()}


def test_other_dtypes_come_back_as_they_came(gpt) -> None:
    module, form = gpt
    state = {n: t.float() for n, t in drawn(module).items()}
    moved = form.sample(state, generator=torch.Generator().manual_seed(0))
    assert {t.dtype for t in form(state).values()} == {torch.float32}
    comparison = compare_fibres(form, state, moved)
    assert comparison.same_function
    assert comparison.distances["between normal forms"] < 1e-4 < comparison.distances["as they are"]
    assert "the same function" in str(comparison)


def test_signs_are_settled_since_none_is_left_that_others_make_up_for(gpt) -> None:
    """The sign of a whole stream is that of all its entries: with both, `balance` would know neither."""
    module, form = gpt
    own = form(drawn(module))
    moved = form.space.sample(generator=torch.Generator().manual_seed(3)).act(own)
    first, second = (balance({n: t[None, None] for n, t in x.items()}, form.space)[0] for x in (own, moved))
    for name, t in first.items():
        torch.testing.assert_close(t.flatten().sort().values, second[name].flatten().sort().values, rtol=0, atol=1e-9)
    assert all(node.size != 1 for node in form.space.nodes.values())


def test_gradients_are_those_of_finite_differences(gpt) -> None:
    module, form = gpt
    state = {n: t for n, t in drawn(module).items() if n in form.whole.parameters}
    direction = {n: torch.randn_like(t) for n, t in state.items()}

    def size(step: torch.Tensor) -> torch.Tensor:
        normal = form({n: t + step * direction[n] for n, t in state.items()})
        return sum((t**4).sum() for t in normal.values())  # the same for all signs

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(size(step), step)
    ends = [size(torch.tensor(h, dtype=torch.float64)) for h in (1e-5, -1e-5)]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=0)


def test_adapters_that_are_0_as_at_the_start() -> None:
    torch.manual_seed(0)
    module = LowRank()
    form = normal_form(module, torch.randn(7, 4))
    fresh = {n: t.double() for n, t in module.state_dict().items()} | {"b": torch.zeros(5, 2, dtype=torch.float64)}
    assert not any(t.any() for t in form(fresh).values())
    half = fresh | {"b": torch.randn(5, 1, dtype=torch.float64).expand(5, 2)}  # of rank 1
    normal = form(half)
    torch.testing.assert_close(normal["b"] @ normal["a"], half["b"] @ half["a"])
    assert compare_fibres(form, half, form.sample(half)).same_function


def test_gains_of_0_and_equal_singular_values(gpt) -> None:
    module, form = gpt
    state = drawn(module)
    state["norm2.weight"][2] = 0
    inputs = tokens(11)()
    written = form.write(form(state))
    assert largest_change(answers(module, state | written, inputs), answers(module, state, inputs)) < 1e-9
    attention = Attention(4, 3)
    form = normal_form(attention, normal(3, 6, 4)())
    state = drawn(attention)
    for name in ("q.weight", "k.weight"):
        state[name] = torch.eye(3, 4, dtype=torch.float64)
    for name in ("q.bias", "k.bias"):
        state[name] = torch.zeros(3, dtype=torch.float64)
    for seed in range(5):
        assert compare_fibres(
            form, state, form.sample(state, generator=torch.Generator().manual_seed(seed))
        ).same_function


def test_wide_bottlenecks_have_directions_that_nothing_reads() -> None:
    module = nn.Sequential(nn.Linear(2, 6, bias=False), nn.Linear(6, 3, bias=False))
    form = normal_form(module, torch.randn(7, 2))
    state = drawn(module)
    normal = form(state)
    torch.testing.assert_close(normal["1.weight"] @ normal["0.weight"], state["1.weight"] @ state["0.weight"])
    assert compare_fibres(form, state, form.sample(state)).same_function


@pytest.mark.parametrize(
    ("act", "linear"), [(nn.Identity(), 9), (nn.Tanh(), 0), (nn.ReLU(), 0), (nn.Softmax(-1), 0), (nn.Dropout(0.5), 9)]
)
def test_what_is_not_linear_breaks_matrices(act: nn.Module, linear: int) -> None:
    form = normal_form(nn.Sequential(nn.Linear(5, 3), act, nn.Linear(3, 6)), torch.randn(9, 5))
    assert form.dimensions()["linear"] == linear


def test_frozen_parameters_stay() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 6))
    free, held = (normal_form(module, torch.randn(4, 5), frozen=names) for names in ((), ("1.weight", "1.bias")))
    assert (free.fibre_dimension, held.fibre_dimension) == (12, 0)
    assert list(held.whole.parameters) == ["0.weight", "0.bias"]
    module[1].requires_grad_(False)
    assert normal_form(module, torch.randn(4, 5)).fibre_dimension == 0
    module.requires_grad_(False)
    assert normal_form(module, torch.randn(4, 5)).fibre_dimension == 12


def test_the_module_is_left_as_it_was() -> None:
    module = encoder(first=True).train()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    normal_form(module, torch.randn(3, 5, 6))
    assert module.training
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_tied_parameters_move_under_all_their_names() -> None:
    torch.manual_seed(0)
    module, inputs = GPT(attention=False, head="tied").double(), tokens(11)()
    form = normal_form(module, inputs)
    before, state = module(inputs), {n: t.clone() for n, t in module.state_dict().items()}
    for moved in (form.sample(state), form.write(form(state))):
        assert set(moved) == set(state)
        assert all(t.is_contiguous() for t in moved.values())  # as files of safetensors have to be
        module.load_state_dict(moved)
        torch.testing.assert_close(module(inputs), before)


class Summed(nn.Module):
    """A map of the sum over tokens of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).sum(1))


@pytest.mark.parametrize(
    ("module", "example", "other"),
    [
        (Summed(), (2, 5, 3), (2, 6, 3)),
        (nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.Conv2d(3, 4, 3, 2, 1)), (2, 2, 2, 2), (2, 2, 9, 9)),
    ],
    ids=["tokens", "borders"],
)
def test_constants_that_depend_on_sizes_stay(
    module: nn.Module, example: tuple[int, ...], other: tuple[int, ...]
) -> None:
    form = normal_form(module, torch.randn(example))
    state, x = drawn(module), torch.randn(other, dtype=torch.float64)
    expected = answers(module, state, x)
    for moved in (form.write(form(state)), form.sample(state)):
        assert largest_change(answers(module, state | moved, x), expected) < 1e-9


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(t - b[n]).square().sum() for n, t in a.items()]).sum().sqrt())


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Llama(2), tokens(9)()),
        (GPT(attention=False, head="tied"), tokens(11)()),
        (encoder(first=False), normal(3, 5, 6)()),
    ],
    ids=["Llama", "tied", "encoder"],
)
def test_networks_next_to_one_another_have_their_own_functions(module: nn.Module, inputs: torch.Tensor) -> None:
    form, inputs = normal_form(module, inputs), doubled(inputs)
    a, b = drawn(module), drawn(module, 1)
    near = align_fibres(form, a, b)
    for state, found in zip((a, b), near, strict=True):
        assert largest_change(answers(module, state | found, inputs), answers(module, state, inputs)) < 1e-9
        assert set(found) == {*form.whole.parameters, *form.whole.ties}
    alone = [form.write(form(state)) for state in (a, b)]
    assert distance(*near) < 0.95 * distance(*alone)
    moved = form.sample(b, generator=torch.Generator().manual_seed(0))
    assert distance(*align_fibres(form, b, moved)) < 1e-8 * distance(*alone)
    narrow = align_fibres(form, {n: t.float() for n, t in a.items()}, b)
    assert [{t.dtype for t in found.values()} for found in narrow] == [{torch.float32}, {torch.float64}]


def test_scales_are_those_of_the_normal_forms_alone() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4))
    form = normal_form(module, normal(40, 6)())
    for seed in range(15, 20):
        state = {n: t.float() for n, t in drawn(module, seed).items()}
        comparison = compare_fibres(form, state, form.sample(state, generator=torch.Generator().manual_seed(seed)))
        assert comparison.same_function
        assert comparison.distances["between normal forms"] < 5e-7


def test_what_stays_has_to_be_equal() -> None:
    module = LowRank()
    form = normal_form(module, torch.randn(7, 4))
    state = drawn(module)
    comparison = compare_fibres(form, state, state | {"base": torch.randn(5, 4)})
    assert (comparison.same_function, comparison.unlike) == (False, ("base",))
    assert "other values: base" in str(comparison)


def test_fresh_norms_may_be_frozen() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    module[1].requires_grad_(False)
    form = normal_form(module, torch.randn(4, 6))
    assert form.dimensions()["means"] == 7
    trained = module.state_dict() | {"1.weight": torch.rand(5) + 0.5}  # of which that is not true
    comparison = compare_fibres(form, trained, form.sample(trained) | {"1.weight": trained["1.weight"]})
    assert (comparison.same_function, comparison.unlike) == (False, ("1.weight",))


def test_heads_may_start_with_zeros() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    module[2].requires_grad_(False).weight.zero_().requires_grad_()
    module[2].bias.zero_().requires_grad_()
    trained = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    inputs = torch.randn(4, 6)
    assert normal_form(module, inputs).dimensions() == normal_form(trained, inputs).dimensions()


def test_small_tensors_and_narrow_types_count() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    form = normal_form(module, torch.randn(4, 6))
    state = drawn(module)
    state["0.weight"] *= 1e8
    assert not compare_fibres(form, state, state | {"2.weight": state["2.weight"] * 1.05}).same_function
    narrow = {n: t.bfloat16() for n, t in state.items()}
    other = narrow | {n: t.bfloat16() for n, t in drawn(module, 1).items() if not n.startswith("0")}
    assert not compare_fibres(form, narrow, other).same_function
    half = {n: t.half() for n, t in drawn(module, 2).items()} | {"0.weight": state["0.weight"].div(1e5).half()}
    assert not compare_fibres(form, half, half | {"2.bias": half["2.bias"] * 1.04}).same_function


def test_fresh_networks_are_seen_through_in_float32() -> None:
    """Their biases are 0, and those of what they were moved to are 0 but for rounding."""
    torch.manual_seed(0)
    module = encoder(first=True)
    form = normal_form(module, torch.randn(3, 5, 6))
    for seed in range(3):
        moved = form.sample(module.state_dict(), generator=torch.Generator().manual_seed(seed))
        assert compare_fibres(form, module.state_dict(), moved).same_function


def test_directions_are_found_without_gradients_around() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 6))
    with torch.inference_mode():
        assert normal_form(module, torch.randn(2, 5)).fibre_dimension == 12


def test_words_say_which_directions_there_are(gpt) -> None:
    assert gpt[1].explain().splitlines()[0] == "150 of 373 directions leave the function as it is:"
    two = normal_form(Llama(2), tokens(9)())
    assert "rotary pair may change signs" in two.explain()
    assert "rotary pair may change" not in gpt[1].explain()


def test_what_is_missing_or_of_another_shape_is_named(gpt) -> None:
    module, form = gpt
    state = drawn(module)
    with pytest.raises(InvalidValueError, match=r"missing: head\.weight"):
        form({n: t for n, t in state.items() if n != "head.weight"})
    with pytest.raises(InvalidValueError, match=r"down\.weight"):
        form(state | {"down.weight": torch.zeros(5, 3)})
    with pytest.raises(InvalidValueError, match="entries are too large"):
        form({n: t * 1e200 for n, t in state.items()})
    with pytest.raises(InvalidValueError, match="holds no values"):
        form({n: torch.empty(0, 1, *t.shape) for n, t in state.items()})
    with pytest.raises(InvalidValueError, match=r"down\.weight holds 20 NaN"):
        form(state | {"down.weight": torch.full((5, 4), torch.nan)})


def test_equal_singular_values_are_reported(gpt) -> None:
    module, form = gpt
    gaps = form.gaps(form(drawn(module)))
    assert set(gaps) == {turn.node for turn in form.turns}
    assert all(1e-6 < float(gap) < 1 for gap in gaps.values())
    chain = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False))
    reduced = normal_form(chain, torch.randn(2, 5))
    values = torch.tensor([[4.0, 2.0, 1.0], [3.0, 3.0, 1.0]], dtype=torch.float64)  # of their products
    q = torch.linalg.qr(torch.randn(2, 2, 5, 3, dtype=torch.float64)).Q
    networks = {"0.weight": values[:, None, :, None] * q[:, :1].mT, "1.weight": q[:, 1:]}
    (found,) = reduced.gaps(reduced(networks)).values()
    torch.testing.assert_close(found, torch.tensor([0.25, 0.0], dtype=torch.float64), rtol=0, atol=1e-9)
    for i, close in enumerate([(), (reduced.turns[0].node,)]):
        network = {n: t[i, 0] for n, t in networks.items()}
        moved = reduced.sample(network, generator=torch.Generator().manual_seed(0))
        compared = compare_fibres(reduced, network, moved)
        assert (compared.same_function, compared.close) == (True, close)
    assert "nearly equal singular values" in str(compared)


def test_parameters_that_nothing_reads_are_no_difference() -> None:
    module = nn.ModuleDict({"read": nn.Linear(4, 3), "other": nn.Linear(4, 3)})
    module.forward = lambda x: module["read"](x)
    form = normal_form(module, torch.randn(2, 4))
    state = module.state_dict()
    for name, same in {"other.weight": True, "read.weight": False}.items():
        assert compare_fibres(form, state, {**state, name: state[name] + 1}).same_function == same


def test_folded_batch_norms_are_recognised() -> None:
    torch.manual_seed(0)
    module = NormedConvolutions()
    form = normal_form(module, torch.randn(2, 2, 8, 8))
    own = drawn(module)
    own |= {n: torch.rand_like(t) + 0.5 for n, t in own.items() if n.endswith("running_var")}
    factor = own["norm1.weight"] / (own["norm1.running_var"] + 1e-5).sqrt()
    folded = own | {
        "first.weight": own["first.weight"] * factor[:, None, None, None],
        "first.bias": (own["first.bias"] - own["norm1.running_mean"]) * factor + own["norm1.bias"],
        "norm1.weight": torch.ones(4, dtype=torch.float64),
        "norm1.bias": torch.zeros(4, dtype=torch.float64),
        "norm1.running_mean": torch.zeros(4, dtype=torch.float64),
        "norm1.running_var": torch.ones(4, dtype=torch.float64) - 1e-5,
    }
    assert compare_fibres(form, own, folded).same_function
    other = {**folded, "norm1.running_mean": torch.full((4,), 1e-3, dtype=torch.float64)}
    assert not compare_fibres(form, own, other).same_function
    written = form.write(form(own))
    assert written["norm1.running_mean"].eq(0).all()
    assert written["norm1.running_var"].eq(1).all()


def test_batch_norms_of_several_nodes_have_statistics_too() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 2), nn.Linear(3, 4), nn.Linear(6, 2)
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(torch.cat([self.a(x).relu(), self.b(x).tanh()], 1)).relu())

    torch.manual_seed(0)
    module, x = Dense(), torch.randn(5, 3)
    form = normal_form(module, x)
    own = drawn(module) | {"norm.running_var": torch.rand(6, dtype=torch.float64) + 0.5}
    written = form.write(form(own))
    assert written["norm.running_mean"].eq(0).all()
    assert written["norm.running_var"].eq(1).all()
    assert largest_change(answers(module, own | written, x.double()), answers(module, own, x.double())) < 1e-12


def test_constants_flow_through_matrices_that_are_frozen() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    for layer in module:
        layer.weight.requires_grad_(False)
    assert normal_form(module, torch.randn(5, 4)).dimensions()["constants"] == 3


def test_signs_of_groups_are_those_of_their_gains() -> None:
    """Which come first among the parameters here; a group's gains change signs with it, and so cannot become 1."""

    class Groups(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.GroupNorm(2, 4), Attention(4, 4)
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.last(x + self.attention(self.norm(x.mT).mT))

    form = normal_form(Groups(), torch.randn(3, 6, 3))
    assert {k: n for k, n in form.dimensions().items() if n} == {"linear": 32, "scales": 4, "constants": 12}


def test_running_variances_below_0_are_named() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    form, state = normal_form(module, torch.randn(5, 3)), drawn(module)
    with pytest.raises(InvalidValueError, match=r"normal form of 0\.weight.* a running variance is negative"):
        form(state | {"1.running_var": torch.tensor([1.0, -1, 1, 1], dtype=torch.float64)})
