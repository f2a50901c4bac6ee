"""Layers from neuron features to neuron features: from `Features` to `Features`, or in buckets from layer to layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.steps import Layer
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .arrange import LARGE, PADDING, buckets_of
from .buckets import Neurons
from .layout import neuron_layout

In = TypeVar("In", Features, Neurons)
Made = TypeVar("Made")


class _Shelf:
    """Attributes that copies do not have."""

    def __reduce__(self) -> tuple[type[_Shelf], tuple[()]]:
        return _Shelf, ()


class OnNeurons(Layer):
    """A module on neuron features of one space.

    Args:
        space: the networks' weight space.
        channels: of all streams.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        self.neurons = neuron_layout(space)
        self.in_layout = self.neurons.layout
        self._shelf = _Shelf()

    def packed(self, features: Features | Neurons) -> Neurons:
        """Neuron features in buckets, checked where they are `Features`."""
        if isinstance(features, Neurons):
            channels, alike = features.rows.shape[-1], features.buckets.layout.layout is self.neurons.layout
            if channels != self.channels or not alike:
                raise InvalidValueError(
                    f"{type(self).__name__}: neurons of {channels} channels and {'this' if alike else 'another'} "
                    f"space; the layer was built for {self.channels} channels of {self.space}"
                )
            return features
        self.in_layout.require(features, self.channels, type(self).__name__, next(self.parameters(), None))
        buckets = self.lately(buckets_of, *self.arrangement(features.sizes, features.tensors[0]))
        return buckets.pack(features)

    def arrangement(self, sizes: dict[str, int], like: Tensor) -> tuple[Any, ...]:
        """The arguments of `buckets_of` for networks of these sizes, in batches like a tensor.

        Tensors are padded as long as that is cheaper than more of them, and are kept below `LARGE` on a CPU. A compiler
        may meet batches of any size, and gets the arrangement that suits small ones.
        """
        entry = self.channels * like.element_size()
        if torch.compiler.is_compiling():
            padding, most = PADDING // (8 * entry), 2**62
        else:
            # A power of 2, so that batches of other sizes seldom need another arrangement.
            entry *= 1 << (max(1, like.shape[0]) - 1).bit_length()
            padding, most = PADDING // entry, max(1, LARGE // entry)
        if like.device.type != "cpu":
            padding, most = 64 * padding, 2**62
        known = {name: node.size or 1 for name, node in self.space.nodes.items()} | sizes
        # Constants to a compiler, even where it takes sizes for variables.
        return self.channels, str(like.device), padding, most, *(hash(known[name]) for name in self.space.nodes)

    def lately(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """`WeightSpace.lately`; a compiler sees only what comes back, and watches nothing that others make."""
        if not torch.compiler.is_compiling():
            return self.space.lately(make, *arguments)
        name = f"{make.__name__} {' '.join([str(argument) for argument in arguments])}"
        self._shelve(name, make, *arguments)
        return getattr(self._shelf, name)  # type: ignore[no-any-return]

    def _shelve(self, name: str, make: Callable[..., object], *arguments: Hashable) -> bool:
        setattr(self._shelf, name, self.space.lately(make, *arguments))
        return True

    # What `torch.compiler.assume_constant_result` does, which would import the compiler.
    _shelve._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}"


class NeuronLayer(OnNeurons):
    """A layer from neuron features to neuron features of one space."""

    @property
    def out_layout(self) -> object:
        """The layout of its output, that of its input."""
        return self.in_layout

    def forward(self, features: In) -> In:
        """Neuron features, `Features` or in buckets, -> the same."""
        neurons = self.packed(features)
        out = self.on(neurons)
        return out if isinstance(features, Neurons) else neurons.buckets.unpack(out)

    def on(self, neurons: Neurons) -> Neurons:
        """The layer itself."""
        raise NotImplementedError
