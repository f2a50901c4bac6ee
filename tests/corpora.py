"""What tests ask of corpora of published networks."""

import torch

from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.networks import Corpus, Part


def parts(corpus: Corpus) -> list[Part]:
    return [*corpus.train, *corpus.val, *corpus.test]


def template_outputs(part: Part, x: torch.Tensor) -> torch.Tensor:
    """What the networks of a part answer, run as its info says."""
    assert part.info.template is not None
    module = part.info.template().eval()
    own = [name for name, _ in module.named_parameters()]
    tensors = {key: part.networks.tensors[name] for key, name in zip(own, part.info.space.parameters, strict=True)}
    return network_outputs(module, {key: t.unsqueeze(1) for key, t in tensors.items()}, x)
