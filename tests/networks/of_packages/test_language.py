"""Transformers of the package of that name have the groups that are counted by hand, and no scaling more."""

import pytest
from networks.of_packages.checking import Expected, check, disturbed
from networks.of_packages.language import MODELS, Sizes
from networks.oracle import Function, scalings

from nfn_monomial.space.certificate import Float64

pytestmark = pytest.mark.networks


def expected(name: str, n: Sizes) -> Expected:
    """Everywhere: the stream, hidden neurons, heads with what is nested in them; v against o in every head."""
    head = n.width // n.heads
    if name in ("llama", "qwen2", "falcon"):
        # Key-value heads, with two query heads each. q against k has one scale for each of them: the rotary positions
        # hold their neurons in place (that every rotated pair could have a scale of its own is not seen).
        pairs = n.heads // 2
        nodes = [str(n.width), *n.blocks * [f"{pairs}[2, {head}]", str(n.hidden)]]
        # The gains of two norms, up against down; the last norm's gain. RMS norms leave signs of the stream alone.
        if name == "falcon":  # a GELU in its MLP, layer norms, the last of which a tied head reads
            count = n.blocks * (pairs * head + pairs + 2 * n.width)
            return Expected(sorted(nodes), count, count)
        count = n.blocks * (pairs * head + pairs + 2 * n.width + n.hidden) + n.width
        return Expected(sorted(nodes), count, count + n.width)
    if name == "neox":  # half of the neurons of queries and keys are rotated
        nodes = [str(n.width), *n.blocks * [f"{n.heads}[{head // 2}, {head}]", str(n.hidden)]]
        count = n.blocks * (n.heads * (head + head // 2 + 1) + 2 * n.width) + n.width
        return Expected(sorted(nodes), count, count)
    if name == "bloom":  # slopes tell the heads apart, in which neurons move on their own
        nodes = [str(n.width), *n.blocks * [*2 * [f"still {n.heads}[{head}]"], str(4 * n.width)]]
        return Expected(sorted(nodes), n.blocks * 4 * n.width, n.blocks * 4 * n.width)
    nodes = [str(n.width), *n.blocks * [f"{n.heads}[{head}, {head}]", str(n.hidden)]]
    attention = n.blocks * 2 * n.width  # q against k too
    gains = {
        # The same; the relative positions' embeddings are permuted on their own.
        "deberta": 2 * n.width,
        # Only the last block's last norm: what others give is normalised again, or read by the tied decoder.
        "bert": n.width,
        # The last norm is read by the tied head.
        "gpt2": n.blocks * 2 * n.width,
        "vit": n.blocks * 2 * n.width + n.width,
    }
    nodes += [str(n.width)] if name == "deberta" else []
    return Expected(sorted(nodes), attention + gains[name], attention + gains[name])


@pytest.mark.parametrize("name", MODELS)
def test_group(name: str) -> None:
    sizes = Sizes()
    module = disturbed(MODELS[name](sizes, attn_implementation=MODELS[name].attention))
    check(module, MODELS[name].inputs(sizes), expected(name, sizes))


@pytest.mark.parametrize("name", MODELS)
def test_no_scaling_is_missing(name: str) -> None:
    """As many as the oracle counts, attention written out; of the neurons of a head two are rotated, a single pair."""
    sizes = Sizes(width=8, hidden=6, blocks=1, heads=2 if name == "neox" else 4, words=7, positions=5)
    module = MODELS[name](sizes, attn_implementation="eager")
    for norm in module.modules():
        if hasattr(norm, "variance_epsilon"):
            norm.eps = norm.variance_epsilon = 0.1  # as the oracle has it in other norms
    function = Function(module, lambda: (MODELS[name].inputs(sizes),))
    for buffer in [buffer for buffer, _ in module.named_buffers() if buffer in function.shapes]:
        del function.shapes[buffer]  # frequencies of the rotary positions
    with Float64():
        assert scalings(function).count == expected(name, sizes).scalings
    check(disturbed(module), *function.inputs(), expected(name, sizes))
