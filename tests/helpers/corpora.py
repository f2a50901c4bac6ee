"""What tests ask of corpora of published networks."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.moves import transform
from nfn_monomial.benchmarks.data.networks import Corpus


def check_functions(corpus: Corpus, made: Sequence[nn.Module], x: Tensor, times: int = 100) -> None:
    """Every network computes what it did, and so it does when it is moved by its group; its accuracy has its number."""
    for part in (*corpus.train, *corpus.val, *corpus.test):
        own = [made[round(times * a)].eval() for a in part.networks.accuracy.tolist()]
        with torch.no_grad():
            expected = torch.stack([one(x) for one in own])
        assert part.info.template is not None
        module = part.info.template()
        if not isinstance(module, fx.GraphModule):  # which has its mode from its export
            module.eval()
        for moved in (part, transform((part,), 3.0, seed=1)[0]):
            tensors = {name: t.unsqueeze(1) for name, t in moved.networks.tensors.items()}
            torch.testing.assert_close(network_outputs(module, tensors, x), expected, atol=1e-4, rtol=1e-4)
