"""Networks as ``torch_geometric`` graphs, and back.

A network is one graph: a node for every neuron or channel of every node set of its `WeightSpace`, inputs and outputs
included, node sets in the space's order; an edge for every pair of neurons that a weight connects. With ``N`` nodes,
``E`` edges, ``L`` layers and ``C`` channels (a ``torch_geometric.data.Data``; of a ``Batch``, the same with networks
one after the other):

===============  =============  ======================================================================================
``x``            ``(N, C)``     biases, charge +1; 0 where a node has none
``edge_index``   ``(2, E)``     directed k -> j: source = column neuron of the weight, target = row neuron
``edge_attr``    ``(E, K C)``   the kernel, flattened row-major, channels run fastest; charge +1 at j and -1 at k
``edge_layer``   ``(E,)``       number of the weight, ``0 .. L - 1``
``symmetry``     ``(N,)``       value of the `Symmetry` that acts on the node: its group, 0 where it is FIXED
``layer``        ``(N,)``       number of the node set, 0 = inputs, ``L`` = outputs
``neuron``       ``(N,)``       number within the node set
``depth``        ``(N,)``       ``L``, so that layers can be counted from the end in a batch
``has_bias``     ``(N,)``       whether ``x`` is a parameter of the network
``kernel``       ``(1, D)``     the shape ``K`` that kernels are padded to; one row a graph
===============  =============  ======================================================================================

So the group acts as ``x_j -> d_j x_j`` and ``edge_attr_jk -> d_j / d_k edge_attr_jk`` with one scale a node, and
permutes neurons within a layer (`act`). Edges are ordered by weight, then target, then source: those of a
weight in a batch of one architecture are a dense ``(B, rows, columns, K, C)``. Kernels are zero-padded to
``kernel``, in its middle (a linear layer's single entry in the centre of a 5 x 5 one); columns that a flatten folded
have one entry a position, padded at the end. Networks of one batch need one kernel and one ``C``; `to_graphs` sees to
it, and `common_kernel` gives the kernel for graphs made apart.

A chain of layers has no other attributes. Where a batch has other networks, its graphs also have the charges of edges,
and the gauges and parents of nodes. Parameters that are neither biases nor weights are edges from a neuron to itself:
gains, depthwise kernels, a second bias; those without an axis are such edges of FIXED nodes of their own, before the
last node set. A neuron of a nested node is a pair, of its parent's and its own. ``edge_layer`` numbers all that are
edges. For ``G`` gauges and ``K`` pairs of opposite charges, the largest numbers of the spaces that `to_graphs` is given
together:

===================  =============  ==================================================================================
``gauges``           ``(N, G)``     value of the `Symmetry` of each gauge, first of those that it is nested in
``inherited``        ``(N,)``       the number of gauges of nodes that it is nested in
``parent_index``     ``(N,)``       the node that it is nested in, or itself
``edge_charge``      ``(E, 2, G)``  the edge's charges at its target and at its source
``edge_streams``     ``(E, 2)``     numbers of the streams, ``2 K`` for ``inv``, that transform as the edge does there
``stream_symmetry``  ``(N, K)``     value of the `Symmetry` that acts on each pair of streams
===================  =============  ==================================================================================

Parameters with three ends or more have no graph. Layers call `check_graph` on their input; it documents what they
refuse. With transforms and layers of ``torch_geometric``:

- ``DataLoader``, ``Batch.from_data_list``, ``to_data_list``, indexing, ``to(device)`` and transforms of ``x`` or
  ``edge_attr`` work. Layers take nodes and edges in any order, `from_graph` in that of `to_graph` alone.
- ``ToUndirected`` gives every edge a reverse one with the same ``edge_attr`` and sorts them (nothing is added up, for
  no edge has a reverse one before). A reverse edge would need the inverse charges, so layers that respect the
  symmetries and `from_graph` refuse the result; it is for layers that know none, after `MonomialCanonicalize` or on
  graphs of balanced networks. `from_graph` and whole models refuse ``AddSelfLoops`` too.
- A batch of batches holds the graphs of all of them.
- Graphs that neural-graphs and ScaleGMN made become such graphs by `adopt`, and `release` is the way back.
- Neurons without edges are nodes like any other for layers; `from_graph` needs every edge, zeros included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .checks import check_graph
    from .conv import MonomialCanonicalize, MonomialConv, MonomialGate, MonomialNorm, layer_groups
    from .convert import FromGraph, ToGraph, common_kernel, from_graph, from_graphs, to_graph, to_graphs
    from .group import act, assert_graph_equivariant, assert_graph_invariant, random_graph_element
    from .models import MonomialBlock, MonomialEmbedding, MonomialGNN, MonomialPool
    from .peers import adopt, release
else:
    lazy(
        __name__,
        {
            "checks": ["check_graph"],
            "conv": ["MonomialCanonicalize", "MonomialConv", "MonomialGate", "MonomialNorm", "layer_groups"],
            "convert": ["FromGraph", "ToGraph", "common_kernel", "from_graph", "from_graphs", "to_graph", "to_graphs"],
            "group": ["act", "assert_graph_equivariant", "assert_graph_invariant", "random_graph_element"],
            "models": ["MonomialBlock", "MonomialEmbedding", "MonomialGNN", "MonomialPool"],
            "peers": ["adopt", "release"],
        },
    )

__all__ = [
    "FromGraph",
    "MonomialBlock",
    "MonomialCanonicalize",
    "MonomialConv",
    "MonomialEmbedding",
    "MonomialGNN",
    "MonomialGate",
    "MonomialNorm",
    "MonomialPool",
    "ToGraph",
    "act",
    "adopt",
    "assert_graph_equivariant",
    "assert_graph_invariant",
    "check_graph",
    "common_kernel",
    "from_graph",
    "from_graphs",
    "layer_groups",
    "random_graph_element",
    "release",
    "to_graph",
    "to_graphs",
]
