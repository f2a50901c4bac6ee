"""Architectures of torchvision, timm, diffusers, torch_geometric and transformers with few channels, and inputs."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch_geometric.nn
from networks.zoo import gaussian, tokens
from scripts import script
from torch import Tensor, nn


class Architecture(NamedTuple):
    """How a network is made, of the module of its package, and inputs are drawn."""

    package: str
    build: Callable[[Any], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


def package(name: str) -> ModuleType:
    """The module ``name``; skips the test where it is not installed."""
    try:
        module: ModuleType = torch_geometric.nn if name == "torch_geometric.nn" else script("gallery").package(name)
    except ModuleNotFoundError:
        pytest.skip(f"{name} is not installed: make gallery installs it")
    return module


Table = dict[str, tuple[Callable[[Any], nn.Module], Callable[[], tuple[Tensor, ...]]]]


class Answer(nn.Module):
    """A model of diffusers, as a function of tensors alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs, return_dict=False)[0]


class Pyramid(nn.Module):
    """Features at two sizes, and what reads both by name."""

    def __init__(self, head: nn.Module, names: tuple[str, str]) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.head, self.names = head, names

    def forward(self, x: Tensor) -> Any:
        fine = self.fine(x).relu()
        return self.head(dict(zip(self.names, (fine, self.coarse(fine).relu()), strict=True)))


class Between(nn.Module):
    """A layer on 8 channels between convolutions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(3, 8, 1), layer, nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x)))


class Graph(nn.Module):
    """Two layers on a graph; what they read of edges comes last."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(4, 6), layer(6, 3)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.second(self.first(x, *edges).relu(), *edges)


class Attending(nn.Module):
    """A layer that keeps the width, between linear maps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 6), layer, nn.Linear(6, 3)

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x), *edges))


def pictures(size: int, *shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return gaussian((2, *(shape or (3,)), size, size))


def timed(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """A noisy picture, a time, and what it is conditioned on."""
    return lambda: (torch.randn(2, 3, 8, 8), torch.tensor([3.0, 7.0]), *(torch.randn(2, *shape) for shape in shapes))


def graph(*features: int) -> Callable[[], tuple[Tensor, ...]]:
    """Five vertices of 4 numbers, eight edges, one of them a loop, features of these."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 1], [1, 2, 3, 4, 0, 2, 0, 1]])
    return lambda: (torch.randn(5, 4), edges, *(torch.randn(8, n) for n in features))


def swin(t: Any) -> nn.Module:
    of = t.models.swin_transformer
    kinds = {"block": of.SwinTransformerBlockV2, "downsample_layer": of.PatchMergingV2}
    return t.models.SwinTransformer([2, 2], 4, [1, 1], [2, 2], [2, 2], 2.0, num_classes=3, **kinds)


def mvit(t: Any) -> nn.Module:
    of = t.models.video.mvit
    blocks = [of.MSBlockConfig(2, 8, 8, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])] * 2
    return of.MViT((8, 8), 4, blocks, True, False, True, True, 0.0, num_classes=3, patch_embed_kernel=(3, 3, 3),
                   patch_embed_stride=(2, 2, 2), patch_embed_padding=(1, 1, 1))  # fmt: skip


TORCHVISION: Table = {
    "SwinV2": (swin, pictures(16)),
    "MViTv2": (mvit, pictures(8, 3, 4)),
    "FPN": (lambda t: Pyramid(t.ops.FeaturePyramidNetwork([4, 6], 5), ("fine", "coarse")), pictures(16)),
    "LR-ASPP": (lambda t: Pyramid(t.models.segmentation.lraspp.LRASPPHead(4, 6, 3, 5), ("low", "high")), pictures(16)),
}  # fmt: skip
TIMM: Table = {
    "ResNet, squeezed": (
        lambda t: t.models.resnet.ResNet(t.models.resnet.BasicBlock, (1, 1, 1, 1), 3, channels=(2, 4, 4, 4),
            stem_width=4, block_args={"attn_layer": "se"},), pictures(32),
    ),
    "ConvNeXtV2": (
        lambda t: t.models.convnext.ConvNeXt(num_classes=3, depths=(1, 1, 1, 1), dims=(4, 4, 4, 4), use_grn=True,
            kernel_sizes=3, ls_init_value=None,), pictures(32),
    ),
    "ViT with registers": (
        lambda t: t.models.VisionTransformer(8, 4, 3, 3, "map", 8, 1, 2, 2.0, qk_norm=True, init_values=0.1,
            reg_tokens=2, no_embed_class=True), pictures(8),
    ),
    "EVA-02": (
        lambda t: t.models.eva.Eva(8, 4, 3, 3, embed_dim=16, depth=1, num_heads=2, mlp_ratio=0.5, qkv_fused=False,
            swiglu_mlp=True, scale_mlp=True, use_rot_pos_emb=True, ref_feat_shape=(2, 2)), pictures(8),
    ),
    "CaiT": (
        lambda t: t.models.cait.Cait(8, 4, num_classes=3, embed_dim=8, depth=1, num_heads=2, mlp_ratio=2.0,
            depth_token_only=1), pictures(8),
    ),
    "CrossViT": (
        lambda t: t.models.crossvit.CrossVit(12, (1.0, 1.0), (4, 6), num_classes=3, embed_dim=(4, 6), depth=((1, 1,
            0),), num_heads=(2, 2), mlp_ratio=(2.0, 2.0, 1.0)), pictures(12),
    ),
    "EfficientViT": (
        lambda t: t.models.efficientvit_mit.EfficientVit(3, (4, 4, 4, 4), (1, 1, 1, 1), 2, 2, num_classes=3,
            head_widths=(8, 6)), pictures(64),
    ),
    "VOLO": (
        lambda t: t.models.volo.VOLO([1, 1], 16, 3, 3, "token", 4, 4, [4, 8], [2, 2], mlp_ratio=2.0,
            post_layers=("ca",), use_aux_head=False), pictures(16),
    ),
    "HaloNet's attention": (
        lambda t: Between(t.layers.halo_attn.HaloAttn(8, num_heads=2, block_size=2, halo_size=1)), pictures(4),
    ),
    "LambdaNetwork's layer": (
        lambda t: Between(t.layers.lambda_layer.LambdaLayer(8, num_heads=2, dim_head=3, r=3)), pictures(4),
    ),
    "FocalNet": (lambda t: t.models.focalnet.FocalNet(3, 3, "avg", 4, (1, 1), 2.0, (2, 2), (3, 3)), pictures(16)),
    "ConViT": (
        lambda t: t.models.convit.ConVit(8, 4, num_classes=3, embed_dim=4, depth=2, num_heads=2, mlp_ratio=2.0,
            local_up_to_layer=1), pictures(8),
    ),
    "TNT": (
        lambda t: t.models.tnt.TNT(16, 8, num_classes=3, embed_dim=8, inner_dim=4, depth=1, num_heads_inner=2,
            num_heads_outer=2, mlp_ratio=2.0), pictures(16),
    ),
    "Sequencer2D": (
        lambda t: t.models.sequencer.Sequencer2d(3, 8, layers=(1, 1), patch_sizes=(2, 2), embed_dims=(4, 4),
            hidden_sizes=(2, 2), mlp_ratios=(2.0, 2.0)), pictures(8),
    ),
    "Hiera": (
        lambda t: t.models.hiera.Hiera((16, 16), embed_dim=4, num_heads=1, num_classes=3, stages=(1, 1), q_pool=1,
            mask_unit_size=(2, 2), mask_unit_attn=(True, False), mlp_ratio=2.0), pictures(16),
    ),
    "InceptionNeXt": (
        lambda t: t.models.inception_next.MetaNeXt(num_classes=3, depths=(1, 1), dims=(8, 8),
            token_mixers=t.models.inception_next.InceptionDWConv2d, mlp_ratios=(2, 2)), pictures(16),
    ),
}  # fmt: skip


class Flux(nn.Module):
    """Flux with the places of its tokens counted in one row."""

    def __init__(self, d: Any) -> None:
        super().__init__()
        self.model = d.FluxTransformer2DModel(
            1, 4, num_layers=1, num_single_layers=1, attention_head_dim=4, num_attention_heads=2,
            joint_attention_dim=6, pooled_projection_dim=5, axes_dims_rope=(2, 2)
        )  # fmt: skip

    def forward(self, x: Tensor, words: Tensor, pooled: Tensor, time: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)[:, None].expand(-1, 2)
        return self.model(x, words, pooled, time, places, words.new_zeros(words.shape[1], 2), return_dict=False)[0]


DIFFUSERS: Table = {
    "Stable Diffusion 3": (
        lambda d: Answer(d.SD3Transformer2DModel(8, 4, 3, num_layers=2, attention_head_dim=2, num_attention_heads=2,
            joint_attention_dim=6, caption_projection_dim=4, pooled_projection_dim=5, out_channels=3,
            pos_embed_max_size=4)), lambda: (torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6), torch.randn(2, 5),
            torch.tensor([3, 7])),
    ),
    "Flux": (Flux, lambda: (torch.randn(2, 9, 4), torch.randn(2, 4, 6), torch.randn(2, 5), torch.rand(2))),
    "PixArt": (
        lambda d: Answer(d.PixArtTransformer2DModel(2, 2, 3, num_layers=1, cross_attention_dim=4, sample_size=8,
            patch_size=4, caption_channels=6, norm_num_groups=2, use_additional_conditions=False)), lambda:
            (torch.randn(2, 3, 8, 8), torch.randn(2, 5, 6), torch.tensor([3, 7])),
    ),
    "unCLIP's prior": (
        lambda d: Answer(d.PriorTransformer(2, 2, 1, embedding_dim=6, num_embeddings=5, additional_embeddings=4)),
            lambda: (torch.randn(2, 6), torch.tensor([3, 7]), torch.randn(2, 6), torch.randn(2, 5, 6)),
    ),
    "Sana": (
        lambda d: Answer(d.SanaTransformer2DModel(3, 3, 2, 2, 1, 2, 2, 4, caption_channels=6, mlp_ratio=2.0,
            sample_size=4, patch_size=1)), lambda: (torch.randn(2, 3, 4, 4), torch.randn(2, 5, 6), torch.tensor([3,
            7])),
    ),
}  # fmt: skip


def neurons(*sizes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]))


def pooling(n: Any) -> nn.Module:
    """Clusters of vertices, softly: diff-pool."""

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.clusters, self.last = n.DenseGCNConv(4, 6), n.DenseGCNConv(4, 3), n.DenseSAGEConv(6, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            features, clusters = self.features(x, edges).relu(), self.clusters(x, edges)
            return self.last(*n.dense_diff_pool(features, edges, clusters)[:2]).mean(1)

    return Pool()


class Pooled(nn.Module):
    """Some vertices are kept, those with the largest numbers."""

    def __init__(self, n: Any) -> None:
        super().__init__()
        self.first, self.pool, self.last = n.GraphConv(4, 6), n.TopKPooling(6, 0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.last(self.pool(self.first(x, edges).relu(), edges)[0].mean(0))


LAYERS: Table = {
    "PNA": (
        lambda n: n.PNA(4, 6, 2, 3, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
            deg=torch.tensor([0, 2, 2, 1])), graph(),
    ),
    "GATv2 with jumps": (lambda n: n.GAT(4, 6, 2, 3, v2=True, heads=2, jk="lstm", norm="graph"), graph()),
    "ARMA": (lambda n: Graph(lambda a, b: n.ARMAConv(a, b, 2)), graph()),
    "graph transformer": (lambda n: Graph(lambda a, b: n.TransformerConv(a, b, 2, concat=False)), graph()),
    "GPS": (lambda n: Attending(n.GPSConv(6, n.GINConv(neurons(6, 5, 6)), heads=2)), graph()),
    "FiLM": (lambda n: Graph(n.FiLMConv), graph()),
    "SAGE, medians": (lambda n: Graph(partial(n.SAGEConv, aggr="median")), graph()),
    "SuperGAT": (lambda n: Graph(n.SuperGATConv), graph()),
    "EdgeConv": (lambda n: Graph(lambda a, b: n.EdgeConv(neurons(2 * a, 5, b))), graph()),
    "gated graph": (lambda n: Attending(n.GatedGraphConv(6, 2)), graph()),
    "NNConv": (lambda n: Graph(lambda a, b: n.NNConv(a, b, nn.Linear(2, a * b))), graph(2)),
    "CGCNN": (lambda n: Attending(n.CGConv(6, 2)), graph(2)),
    "mixture model": (lambda n: Graph(lambda a, b: n.GMMConv(a, b, 2, 3)), graph(2)),
    "diff-pool": (pooling, lambda: (torch.randn(2, 5, 4), torch.rand(2, 5, 5))),
    "LightGCN": (lambda n: n.LightGCN(5, 6, 2), lambda: graph()()[1:]),
    "top-k pooling": (Pooled, graph()),
}  # fmt: skip


class Logits(nn.Module):
    """A language model of transformers as a function of word numbers ``(B, T)``."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, **self.options).logits


WORDS = {"hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 7, "intermediate_size": 6,
         "max_position_embeddings": 5}  # fmt: skip
EXPERTS = WORDS | {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2,
                   "experts_implementation": "batched_mm"}  # fmt: skip


def language(kind: str, head: str = "ForCausalLM", **options: Any) -> tuple[Callable[[Any], nn.Module], Any]:
    """Small, with attention that is written out."""
    cache = {"use_cache": False} if head == "ForCausalLM" else {}
    return (
        lambda t: Logits(
            getattr(t, f"{kind}{head}")(getattr(t, f"{kind}Config")(**options, attn_implementation="eager")), **cache
        ),
        tokens(7, (4, 5)),
    )


TRANSFORMERS: Table = {
    "BLOOM": language("Bloom", hidden_size=8, n_layer=1, n_head=4, vocab_size=7),
    "Falcon": language("Falcon", **WORDS, new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=6),
    "DeBERTa": language("Deberta", "ForMaskedLM", **WORDS, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "OLMoE": language("Olmoe", **EXPERTS, eos_token_id=0),
    "Qwen2-MoE": language("Qwen2Moe", **EXPERTS, moe_intermediate_size=6, shared_expert_intermediate_size=5),
}
TABLES = {
    "torchvision": TORCHVISION,
    "timm": TIMM,
    "diffusers": DIFFUSERS,
    "transformers": TRANSFORMERS,
    "torch_geometric.nn": LAYERS,
}
ARCHITECTURES = {
    name: Architecture(package, *entry) for package, table in TABLES.items() for name, entry in table.items()
}
