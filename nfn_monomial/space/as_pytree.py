"""`Features` as a pytree: transforms, ``tree_map`` and `torch.export` see their tensors, each with its field as key.

`torch.export.save` writes the layout as JSON:

    {"fields": [{"axes": [{"node": "h1", "charge": 1}], "multiplicity": 3, "acting": ["SCALE"]}, ...],
     "content": [{"name": "bias.0", "field": 0, "first": 2, "dims": [{"node": "h1", "charge": 1}]}, ...]}

Files that `torch.save` wrote of features are read with ``weights_only=True``, which reading an exported program tries.
Both need this module to be imported; a program of a model needs the module of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.symmetry import Symmetry

from .as_json import dim_from_json, dim_to_json
from .axes import Axis, Sum, field_name
from .features import Features, Layout


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """A layout in the form above."""
    fields = zip(layout.types, layout.multiplicities, layout.acting, strict=True)
    return {
        "fields": [
            {"axes": [*map(dim_to_json, axes)], "multiplicity": multiplicity, "acting": [*map(str, acting)]}
            for axes, multiplicity, acting in fields
        ],
        "content": [
            {"name": name, "field": field, "first": first, "dims": [*map(dim_to_json, dims)]}
            for name, field, first, dims in layout.content
        ],
    }


def layout_from_json(value: Any) -> Layout:
    """The layout that `layout_to_json` has written."""
    fields, content = value["fields"], value["content"]
    return Layout(
        tuple(_dims(field["axes"]) for field in fields),
        tuple(field["multiplicity"] for field in fields),
        tuple(tuple(Symmetry[name] for name in field["acting"]) for field in fields),
        tuple((part["name"], part["field"], part["first"], _dims(part["dims"])) for part in content),
    )


def _dims(values: list[Any]) -> tuple[Any, ...]:
    return tuple(dim_from_json(value, "a field") for value in values)


def _flatten(features: Features) -> tuple[list[Tensor], Layout]:
    return list(features.tensors), features.layout


def _flatten_with_keys(features: Features) -> tuple[list[tuple[pytree.KeyEntry, Tensor]], Layout]:
    return [(pytree.MappingKey(field_name(t)), x) for t, x in features.fields.items()], features.layout


def _unflatten(tensors: Iterable[Any], layout: Any) -> Features:
    return Features(layout, tuple(tensors))


pytree.register_pytree_node(
    Features,
    _flatten,
    _unflatten,
    serialized_type_name="nfn_monomial.Features",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=layout_to_json,
    from_dumpable_context=layout_from_json,
)
torch.serialization.add_safe_globals([Features, Layout, Axis, Sum, Symmetry])
