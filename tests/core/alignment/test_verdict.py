"""The rule by which two networks are called the same function, at its thresholds and on networks of every kind."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from nfn_monomial import WeightSpace, compare, normal_form
from nfn_monomial.alignment.verdict import EXPLAINS, Level, Move, Outputs, verdict_on
from nfn_monomial.fibre import compare_fibres

WIDE, HALF = torch.float32, torch.float16
AGREE = Outputs(1e-9, 1e-9, 1e-6, True, 1e-7)
BETWEEN, DIFFER = AGREE._replace(relative=1e-5), AGREE._replace(relative=1e-2)


def moved(stored=1.0, left=1e-4, dtypes=(WIDE, WIDE), equal=True, close=True, cast=False):
    return Move("a symmetry makes all weights equal", stored, left, 1e-4, dtypes, equal, close, cast)


@pytest.mark.parametrize(
    ("move", "level"),
    [
        (moved(), Level.SAME),
        (moved(stored=0, left=0, dtypes=(HALF, HALF)), Level.SAME),
        (moved(left=0, dtypes=(HALF, HALF)), Level.SAME),
        (moved(left=0.99 / EXPLAINS), Level.SAME),
        (moved(left=1.01 / EXPLAINS), Level.UNKNOWN),
        (moved(left=0.99 / EXPLAINS, dtypes=(WIDE, HALF)), Level.ROUNDING),
        (moved(left=1.01 / EXPLAINS, dtypes=(WIDE, HALF)), Level.UNKNOWN),
        (moved(stored=1e-4, dtypes=(WIDE, HALF), cast=True), Level.ROUNDING),
        (moved(stored=1e-4, dtypes=(torch.float64, WIDE), cast=True), Level.SAME),
        (moved(close=False), Level.UNKNOWN),
        (moved(equal=False), Level.ROUNDING),
        (moved(equal=False, dtypes=(HALF, HALF)), Level.UNKNOWN),
    ],
)
def test_what_a_move_says(move, level):
    assert move.level == level
    assert verdict_on([move]).level == level
    assert verdict_on([moved(close=False), move]).level == level, "the best move counts"
    assert verdict_on([move], ["other tensors differ: mask"]).level == Level.UNKNOWN
    rounded = Level.UNKNOWN if level == Level.ROUNDING else Level.OTHER  # an argmax may be another one
    assert verdict_on([move], [], DIFFER).level == rounded
    assert verdict_on([move], ["other tensors differ: mask"], DIFFER).level == Level.OTHER
    assert verdict_on([move], [], BETWEEN).level == Level.UNKNOWN
    assert verdict_on([move], [], AGREE).level == level
    assert verdict_on([move], [], AGREE._replace(kept=False)).level == Level.UNKNOWN


WORDS = {Level.SAME: "the same function", Level.ROUNDING: "within the rounding of float", Level.OTHER: "not the same:"}


@given(
    st.sampled_from([moved(), moved(dtypes=(HALF, HALF)), moved(close=False)]),
    st.sampled_from([(), ("other tensors differ: mask",), ("a: 1 and 2", "b: 3 and 4")]),
    st.sampled_from([None, AGREE, BETWEEN, DIFFER, AGREE._replace(kept=False)]),
)
def test_words_say_the_level_and_all_that_differs(move, differing, outputs):
    level, words = verdict_on([move], differing, outputs)
    assert words.startswith(WORDS.get(level, "not known to be the same:"))
    assert level < Level.UNKNOWN or "same function" not in words
    assert level == Level.OTHER or all(sentence in words for sentence in differing)


class Block(nn.Module):
    """A transformer with more directions than a group of permutations, signs and scales has."""

    def __init__(self):
        super().__init__()
        self.tokens, self.up, self.down = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 20)

    def forward(self, t):
        h = self.tokens(t)
        q, k, v = (x(h).unflatten(-1, (2, 4)).transpose(1, 2) for x in (self.q, self.k, self.v))
        h = h + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(self.norm(h + self.down(torch.relu(self.up(h)))))


@pytest.fixture(scope="module")
def block():
    """A trained-like state, the same after some small steps, its space, its normal form, and tokens."""
    torch.manual_seed(0)
    module, tokens = Block().eval(), torch.randint(20, (16, 6))
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    before = copy.deepcopy(module.state_dict())
    optimizer = torch.optim.Adam(module.parameters(), 1e-4)
    for _ in range(2):
        F.cross_entropy(module(tokens).flatten(0, 1), tokens.roll(1, 0).flatten()).backward()
        optimizer.step()
    space, form = WeightSpace.from_module(module, tokens), normal_form(module, tokens)
    return before, module.state_dict(), module, space, form, tokens


def to(state, dtype):
    return {name: t.to(dtype) for name, t in state.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_steps_of_training_are_not_explained_by_any_move(block, dtype):
    """As they are, permuted, scaled, or turned before: two steps of Adam are never the same function."""
    before, after, module, space, form, tokens = block
    generator = torch.Generator().manual_seed(0)
    group = space.sample(generator=generator, scale_range=(0.5, 2))
    rigid = space.restricted("permutation").sample(generator=generator)
    turned = form.sample(to(after, torch.float64), generator=generator)
    others = [after, {**after, **rigid.act(after)}, {**after, **group.act(to(after, torch.float64))}, turned]
    one = to(before, dtype)
    for other in (to(state, dtype) for state in others):
        assert any(not torch.equal(one[n], other[n]) for n in one)
        for found in compare(space, one, other, module=module, inputs=tokens), compare_fibres(form, one, other):
            assert not found.same_function
            assert "the same function" not in found.verdict


@pytest.mark.parametrize("name", ["up.bias", "q.weight", "tokens.weight", "norm.weight"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_entry_of_a_turned_network_is_not_lost_beside_the_others(block, name, dtype):
    before, _, _, space, form, _ = block
    other = {n: t.clone() for n, t in to(before, dtype).items()}
    other[name].view(-1)[3] *= 1.1
    one = to(before, dtype)
    said = compare(space, one, other), compare_fibres(form, one, other)
    assert all(x.verdict.startswith("not known to be the same") for x in said)


@pytest.mark.parametrize("dtypes", list(itertools.product([WIDE, HALF, torch.bfloat16], repeat=2)), ids=str)
def test_copies_are_known_to_the_rounding_of_their_dtype(block, dtypes):
    before, _, module, space, form, tokens = block
    generator = torch.Generator().manual_seed(1)
    scaled = {**before, **space.sample(generator=generator).proper().act(to(before, torch.float64))}
    turned = {**before, **form.sample(to(before, torch.float64), generator=generator)}
    narrow = min(dtypes, key=lambda dtype: -torch.finfo(dtype).eps)
    says = "the same function" if narrow == torch.float32 else f"within the rounding of {str(narrow)[6:]}"
    one = to(before, dtypes[0])
    comparison = compare(space, one, to(scaled, dtypes[1]), module=module, inputs=tokens)
    assert comparison.verdict.startswith(says), comparison
    assert compare_fibres(form, one, to(turned, dtypes[1])).verdict.startswith(says)
    assert compare_fibres(form, one, one).verdict.startswith("the same function")
    cast = compare(space, one, to(before, dtypes[1]), module=module, inputs=tokens)
    assert cast.verdict.startswith("the same function" if dtypes[0] == dtypes[1] else says)


class Ring(nn.Module):
    """Neurons in a cycle look all alike, whatever their neighbours tell them."""

    def __init__(self, width):
        super().__init__()
        self.i, self.w, self.o = (nn.Linear(*n, bias=False) for n in ((2, width), (width, width), (width, 2)))

    def forward(self, x):
        h = self.i(x)
        h = torch.tanh(h + self.w(h))
        return self.o(torch.tanh(h + self.w(h)))


@pytest.mark.parametrize("width", [5, 16])
def test_a_symmetry_that_was_not_found_refutes_nothing(width):
    module, x = Ring(width), torch.randn(20, 2)
    space = WeightSpace.from_module(module, x)
    cycle = sum(torch.eye(width).roll(k, 0) for k in (1, -1)) * 0.3
    a = {"i.weight": torch.tensor([[1.0, 2.0]]).repeat(width, 1), "w.weight": cycle, "o.weight": torch.ones(2, width)}
    for seed in range(4):
        b = space.sample(generator=torch.Generator().manual_seed(seed)).act(a)
        for found in (compare(space, a, b), compare(space, a, b, module=module, inputs=x)):
            assert not found.verdict.startswith("not the same")


def test_neurons_that_nothing_reads_refute_nothing():
    module, x = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 3)
    space, a = WeightSpace.from_module(module, x), {k: t.clone() for k, t in module.state_dict().items()}
    a["2.weight"][:, 0] = 0
    b = {**a, "0.weight": a["0.weight"].clone()}
    b["0.weight"][0] = 7
    assert compare(space, a, b).verdict.startswith("not known to be the same: no symmetry")
    assert "the outputs agree" in compare(space, a, b, module=module, inputs=x).verdict


def test_a_scaled_neuron_hides_no_steps_elsewhere():
    """Entries that nothing multiplies are equal bit by bit, however much another neuron's scale explains."""
    module, x = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 3)
    space = WeightSpace.from_module(module, x)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        a = {k: t.to(dtype) for k, t in module.state_dict().items()}
        b = {k: t.clone() for k, t in a.items()}
        b["0.weight"][2] *= 1024
        b["0.bias"][2] *= 1024
        b["2.weight"][:, 2] /= 1024
        says = "the same function" if dtype == torch.float32 else f"within the rounding of {str(dtype)[6:]}"
        assert compare(space, a, b).verdict.startswith(says)
        b["0.weight"][5, 1] *= 1 + torch.finfo(dtype).eps
        comparison = compare(space, a, b)
        assert not comparison.same_function
        assert comparison.verdict.startswith(
            "not known" if dtype != torch.float32 else "within the rounding of float32"
        )


class Heads(nn.Module):
    """Three heads, of which the example reads one."""

    def __init__(self):
        super().__init__()
        self.i, self.heads = nn.Linear(3, 4), nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x, task=0):
        return self.heads[task](torch.relu(self.i(x)))


def test_parameters_that_nothing_reads_are_named():
    module, x = Heads(), torch.randn(4, 3)
    a = {k: t.clone() for k, t in module.state_dict().items()}
    b = {**a, "heads.2.weight": torch.randn(2, 4)}
    comparison = compare_fibres(normal_form(module, x), a, b)
    assert (comparison.same_function, comparison.unread) == (True, ("heads.2.weight",))
    assert "left out, as the module does not read it: heads.2.weight" in str(comparison)


def test_one_tensor_in_16_bits_does_not_excuse_the_others(block):
    before, _, _, _, form, _ = block
    generator = torch.Generator().manual_seed(3)
    one = {**before, "head.bias": before["head.bias"].bfloat16()}
    for noise, says in (0, "within the rounding of bfloat16"), (1e-3, "not known to be the same"):
        near = {n: t.double() * (1 + noise * torch.randn(t.shape, generator=generator)) for n, t in before.items()}
        other = {n: t.to(one[n].dtype) for n, t in form.sample(near, generator=generator).items()}
        assert compare_fibres(form, one, {**one, **other}).verdict.startswith(says)


class Closest(nn.Module):
    """Looks up the code with the largest product, which rounding may change."""

    def __init__(self):
        super().__init__()
        self.i, self.codes, self.o = nn.Linear(3, 6), nn.Parameter(torch.randn(40, 6)), nn.Linear(6, 2)

    def forward(self, x):
        return self.o(self.codes[(self.i(x) @ self.codes.T).argmax(-1)])


def test_rounding_that_changes_what_is_looked_up_refutes_nothing():
    torch.manual_seed(0)
    module, x = Closest(), torch.randn(400, 3)
    space, a = WeightSpace.from_module(module, x), module.state_dict()
    b = {n: t.bfloat16() for n, t in a.items()}
    comparison = compare(space, a, b, module=module, inputs=x)
    assert comparison.relative_output_difference > 0.1
    assert not comparison.verdict.startswith("not the same")


def test_a_turned_head_excuses_no_other_tensor(block):
    """In float64 a bias is changed by less than normal forms are computed to, beside values and outputs that turned."""
    before, _, _, _, form, _ = block
    a = to(before, torch.float64)
    turn = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    b = {n: t.clone() for n, t in a.items()}
    b["v.weight"][:4], b["v.bias"][:4] = turn @ a["v.weight"][:4], turn @ a["v.bias"][:4]
    b["o.weight"][:, :4] = a["o.weight"][:, :4] @ torch.linalg.inv(turn)
    assert compare_fibres(form, a, b).same_function
    b["up.bias"] = b["up.bias"] * (1 + 2e-11)
    comparison = compare_fibres(form, a, b)
    assert (comparison.same_function, comparison.move.close, comparison.move.explains) == (False, True, True)
