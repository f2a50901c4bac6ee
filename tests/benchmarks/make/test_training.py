"""Training networks of one architecture together: each on its own, as torch does it, whatever the architecture."""

from dataclasses import replace

import pytest
import torch
from tiny_mixed_zoo import SMALL
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.benchmarks.make.config import Hyperparameters
from nfn_monomial.benchmarks.make.training import TrainingDraws, _logits, initial_parameters, train_group
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN

NORMAL = ResidualCNN(1, (4, 5), (1, 1), (3, 4), normalised=True, activations=("tanh",), classes=10)


def drawn(seed: int, **changes: object) -> Hyperparameters:
    base = Hyperparameters("adam", 3e-3, 1e-3, 0.0, 0.1, 4, "glorot_normal", 0.1, "zeros", seed)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_networks_trained_together_are_those_trained_alone(digits: Images, dropout: float) -> None:
    """Different lengths, optimisers, rates and data: nothing leaks from one network into another."""
    chosen = [
        drawn(0, epochs=2, dropout=dropout),
        drawn(1, epochs=4, dropout=dropout / 2, optimizer="sgd", learning_rate=0.1, train_fraction=0.2),
        drawn(2, epochs=3, dropout=dropout, optimizer="rmsprop", l2reg=1e-2, w_init="he_normal"),
    ]
    together, accuracy = train_group(chosen, digits, SMALL)
    for i, one in enumerate(chosen):
        alone, accuracy_alone = train_group([one], digits, SMALL)
        for name, value in together.items():
            torch.testing.assert_close(value[i], alone[name][0], rtol=1e-3, atol=1e-4)
        assert abs(accuracy[i] - accuracy_alone[0]) < 0.005


class Dropping(nn.Module):
    """A chain whose convolutions' activations are multiplied by given masks, in turn."""

    def __init__(self, chain: nn.Sequential) -> None:
        super().__init__()
        self.chain, self.masks = chain, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masks = iter(self.masks)
        for i, layer in enumerate(self.chain):
            x = layer(x)
            x = x * next(masks) if self.masks and i and isinstance(self.chain[i - 1], nn.Conv2d) else x
        return x


@pytest.mark.parametrize(
    ("architecture", "name", "dropout"),
    [(SMALL, "adam", 0.0), (SMALL, "rmsprop", 0.0), (SMALL, "sgd", 0.0), (NORMAL, "sgd", 0.0), (SMALL, "sgd", 0.4)],
)
def test_training_is_that_of_torch(digits: Images, architecture: Architecture, name: str, dropout: float) -> None:
    """Its optimisers, its batch norms, and masks behind every convolution, from another place in every step."""
    one = drawn(7, optimizer=name, learning_rate=0.1 if name == "sgd" else 3e-3, l2reg=1e-2, dropout=dropout)
    shapes = [(32, 4, 4, 8), (32, 4, 4, 9)] if dropout else []  # of SMALL on digits, channels last
    sizes = [torch.Size(shape).numel() for shape in shapes]
    plan = TrainingDraws(one, architecture.sized(), len(digits.train), 32, sum(sizes))
    trained, accuracy = train_group([one], digits, architecture)
    module = architecture.module()
    vector_to_parameters(plan.weights, module.parameters())
    start = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer: torch.optim.Optimizer = {
        "adam": lambda p: torch.optim.Adam(p, one.learning_rate, eps=1e-7),
        "rmsprop": lambda p: torch.optim.RMSprop(p, one.learning_rate, alpha=0.9, eps=1e-7),
        "sgd": lambda p: torch.optim.SGD(p, one.learning_rate),
    }[name](module.parameters())
    kernels = [m.weight for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    running = Dropping(module) if isinstance(module, nn.Sequential) else module
    for t, batch in enumerate(plan.order.view(-1, 32).long()):
        if dropout:
            offset = t * 7919 % sum(sizes)
            masks = plan.masks[offset : offset + sum(sizes)].split(sizes)
            running.masks = [mask.view(s).movedim(-1, 1) for mask, s in zip(masks, shapes, strict=True)]
        rows = digits.train[batch]
        optimizer.zero_grad()
        (
            F.cross_entropy(running(digits.x[rows]), digits.y[rows]) + one.l2reg * sum((p**2).sum() for p in kernels)
        ).backward()
        optimizer.step()
    assert plan.steps > 10
    expected = module.state_dict()
    for name, key in architecture.names.items():
        moved = (expected[key] - start[key]).norm()
        assert moved > 0
        assert (trained[name][0] - expected[key]).norm() < 0.02 * moved  # Keras adds Adam's epsilon elsewhere
    right = (module.eval()(digits.x[digits.test]).argmax(-1) == digits.y[digits.test]).float().mean()
    assert abs(accuracy[0] - right) < 0.01


@pytest.mark.parametrize("architecture", [SMALL, NORMAL])
@pytest.mark.parametrize("shared", [True, False])
def test_networks_side_by_side_answer_as_their_modules(architecture: Architecture, shared: bool) -> None:
    module = architecture.module().eval()
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    state = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    stacked = {name: drawn(3, *tensor.shape) - 0.4 * (tensor.ndim > 1) for name, tensor in state.items()}
    images = drawn(5, 1, 8, 8) if shared else drawn(3, 5, 1, 8, 8)
    logits = _logits(module, stacked, images, {})
    for i, answers in enumerate(logits):
        mine = {name: t[i] for name, t in stacked.items()}
        expected = torch.func.functional_call(module, mine, (images if shared else images[i],))
        torch.testing.assert_close(answers, expected, rtol=1e-10, atol=1e-10)
    assert logits.std(0).min() > 1e-3, "networks differ"


def test_plan_draws_every_image_of_its_share_once_an_epoch() -> None:
    plan = TrainingDraws(drawn(1, epochs=8, train_fraction=0.5), SMALL.sized(), images=128, batch=32)
    assert plan.steps == 16
    assert len(set(plan.subset.tolist())) == 64
    epochs = plan.order.view(8, 64)
    assert all(sorted(epoch.tolist()) == sorted(plan.subset.tolist()) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("w_init", "expected"),
    [
        ("glorot_normal", (2 / (144 + 144)) ** 0.5),
        ("he_normal", (2 / 144) ** 0.5),
        ("orthogonal", (1 / 144) ** 0.5),
        ("RandomNormal", 0.2),
        ("TruncatedNormal", 0.2 * 0.8796),  # the standard deviation of a normal cut at two of its own
    ],
)
def test_initial_parameters(w_init: str, expected: float) -> None:
    one = drawn(0, w_init=w_init, init_std=0.2, b_init="RandomNormal")
    module = PlainCNN((16, 16), (3,), (2,), (0,), (10,), ("relu",)).sized()
    row = initial_parameters(one, torch.Generator().manual_seed(0), module)
    kernel, bias = row[:2304].view(16, 16, 3, 3), row[2304:2320]
    assert kernel.std().item() == pytest.approx(expected, rel=0.05)
    assert bias.std().item() == pytest.approx(0.2, rel=0.5)
    if w_init == "orthogonal":
        torch.testing.assert_close(kernel.flatten(1) @ kernel.flatten(1).T, torch.eye(16), atol=1e-5, rtol=0)
    if w_init == "TruncatedNormal":
        assert kernel.abs().max() <= 0.4 + 1e-6
    zero = initial_parameters(replace(one, b_init="zeros"), torch.Generator().manual_seed(0), module)
    assert (zero[2304:2320] == 0).all()
    assert torch.equal(zero[:2304], row[:2304])
