"""The gallery of docs/gallery.md: well-known architectures, as five packages build them, read or refused.

``python docs/gallery.py`` measures those that docs/gallery.json does not have yet, each in a process of its own, and
writes the page; ``--again NAME ...`` measures these again, ``--again`` alone all. It needs the extra ``gallery``.
Weights are random, sizes small, and nothing is downloaded. ``make gallery`` tests that what is written is still so.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace, normal_form
from nfn_monomial.errors import MonomialError
from nfn_monomial.running import inputs_of
from nfn_monomial.trace import derive
from nfn_monomial.verify.dead import dead_parts

PAGE = Path(__file__).parent / "gallery.md"
RECORD = PAGE.parent / "gallery.json"
PICTURES = PAGE.parent / "images" / "gallery"
BLOCK = re.compile(r"(<!-- gallery -->\n).*?(<!-- end of gallery -->)", re.DOTALL)
PATIENCE = 600  # seconds of one core for one architecture
MEMORY = 12 * 2**30  # bytes for one
LARGEST, MOST = 1_000_000, 220  # weights and tensors of which a normal form is made
LARGE = f"not tried of more than {LARGEST:,} weights or {MOST} tensors"
MARK = "gallery: "
# Why what no network permutes is FIXED.
USUAL = {"input", "output", "looked up", "kernel", "tied to what is FIXED"}
DRAWN = {"AlexNet", "ResNet-18", "ConvMixer", "MLP-Mixer", "Swin", "BERT", "GPT-2", "Llama", "Mixtral", "Mamba", "T5",
         "Whisper", "AutoencoderKL", "GCN", "GAT", "GIN"}  # fmt: skip
WHY = {  # in words, of what is refused, and of what the record has something in `left` of
    "ShuffleNetV2": "in part: channels are shuffled and cut in halves again and again, and some stay",
    "Faster R-CNN": "how many boxes there are depends on values",
    "RAFT, small": "yes; what is looked up by place keeps its order",
    "BEiT": "in part: zeros in place of biases of keys are no part of the state dict, so heads stay",
    "EfficientFormer": "in part: in eval mode, what attention adds is no part of the state dict, so heads stay",
    "XCiT": "yes; the frequencies of its positions keep their order",
    "LeViT": "in part: as EfficientFormer",
    "UNet2DModel": "in part: norms of groups that lie across two concatenated features keep channels where they are",
    "U-Net of Stable Diffusion": "in part: as UNet2DModel",
    "DiT": "yes; sines and cosines of positions keep the order of the stream",
    "SchNet": "how many molecules there are is read from values",
}


class Entry(NamedTuple):
    """An architecture: its package, how it is built from the package's module, its inputs and keywords."""

    package: str
    build: Callable[[Any], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed

    def module(self) -> nn.Module:
        """Builds it with random weights, the same each time, also where packages start with zeros."""
        torch.manual_seed(0)
        module = self.build(package(self.package)).eval()
        for parameter in module.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02)
        return module


def package(name: str) -> ModuleType:
    """Imports a module; torchvision without its compiled operators if they are of another version of torch."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for part in ("_meta_registrations", "_autograd_registrations"):
            sys.modules[f"torchvision.{part}"] = ModuleType(part)
        torchvision = importlib.import_module("torchvision")
        torchvision.ops.boxes.nms = plain_nms
    return importlib.import_module(name)


def plain_nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Returns the boxes that remain if each removes those that overlap it and score less."""
    box_iou = importlib.import_module("torchvision").ops.box_iou
    left, kept = scores.argsort(descending=True), []
    while len(left):
        kept.append(left[0])
        left = left[1:][box_iou(boxes[left[:1]], boxes[left[1:]])[0] <= iou_threshold]
    return torch.stack(kept) if kept else left


def randn(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def words(*more: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    """Numbers of 50 words, two texts of 7; the last two words are left to what else ends or fills a text."""
    return lambda: (torch.randint(2, 48, (2, 7)), *(other() for other in more))


def graph(*features: int) -> Callable[[], tuple[Any, ...]]:
    """Six vertices of 4 numbers and nine edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 1], [1, 2, 3, 4, 5, 0, 2, 0, 4]])
    return lambda: (torch.randn(6, 4), edges, *(torch.randn(9, n) for n in features))


def all_pairs(places: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """The graph of all pairs of atoms, and their distances."""
    pairs = torch.cartesian_prod(*[torch.arange(len(places))] * 2).T
    pairs = pairs[:, pairs[0] != pairs[1]]
    return pairs, (places[pairs[0]] - places[pairs[1]]).norm(dim=-1)


def headed(net: nn.Module, size: int) -> nn.Module:
    """The same with a narrow classifier of three layers, in place of one with most of the weights."""
    net.classifier = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return net


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = SIZES | {"vocab_size": 50, "max_position_embeddings": 16}
GROUPED = TEXT | {"num_key_value_heads": 2}
IMAGE = {"image_size": 16, "patch_size": 4}


def hf(kind: str, head: str, inputs: Callable[[], tuple[Any, ...]], options: Any = None, **config: Any) -> Entry:
    """A model of transformers, of this kind and head, with this configuration."""
    return Entry(
        "transformers",
        lambda t: getattr(t, f"{kind}{head}")(getattr(t, f"{kind}Config")(**config)),
        inputs, options or {},
    )  # fmt: skip


TORCHVISION: dict[str, tuple[Any, ...]] = {
    "AlexNet": (lambda t: headed(t.models.alexnet(), 9216), randn((2, 3, 64, 64))),
    "VGG-11": (lambda t: headed(t.models.vgg11(init_weights=False), 25088), randn((2, 3, 32, 32))),
    "ResNet-18": (lambda t: t.models.resnet18(num_classes=10), randn((2, 3, 32, 32))),
    "ResNet-50": (lambda t: t.models.ResNet(t.models.resnet.Bottleneck, [3, 4, 6, 3], 10, width_per_group=8),
        randn((2, 3, 32, 32))),
    "ResNeXt-50": (lambda t: t.models.ResNet(t.models.resnet.Bottleneck, [3, 4, 6, 3], 10, groups=8, width_per_group=2),
        randn((2, 3, 32, 32))),
    "DenseNet-121": (lambda t: t.models.DenseNet(8, (6, 12, 24, 16), 16, num_classes=10), randn((2, 3, 32, 32))),
    "MobileNetV2": (lambda t: t.models.mobilenet_v2(num_classes=10), randn((2, 3, 32, 32))),
    "MobileNetV3, small": (lambda t: t.models.mobilenet_v3_small(num_classes=10), randn((2, 3, 32, 32))),
    "EfficientNet-B0": (lambda t: t.models.efficientnet_b0(num_classes=10), randn((2, 3, 32, 32))),
    "ShuffleNetV2": (lambda t: t.models.shufflenet_v2_x0_5(num_classes=10), randn((2, 3, 32, 32))),
    "SqueezeNet": (lambda t: t.models.squeezenet1_1(num_classes=10), randn((2, 3, 32, 32))),
    "GoogLeNet": (lambda t: t.models.googlenet(num_classes=10, aux_logits=False, init_weights=False),
        randn((2, 3, 32, 32))),
    "Inception v3": (lambda t: t.models.inception_v3(num_classes=10, aux_logits=False, init_weights=False),
        randn((2, 3, 75, 75))),
    "MNASNet": (lambda t: t.models.mnasnet0_5(num_classes=10), randn((2, 3, 32, 32))),
    "RegNetY": (lambda t: t.models.regnet_y_400mf(num_classes=10), randn((2, 3, 32, 32))),
    "ConvNeXt, tiny": (lambda t: t.models.ConvNeXt([t.models.convnext.CNBlockConfig(*sizes) for sizes in
        ((16, 32, 3), (32, 64, 3), (64, 128, 9), (128, None, 3))], num_classes=10), randn((2, 3, 32, 32))),
    "ViT of torchvision": (lambda t: t.models.VisionTransformer(16, 4, 2, 4, 32, 48, num_classes=10),
        randn((2, 3, 16, 16))),
    "Swin": (lambda t: t.models.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], 2.0, num_classes=10),
        randn((2, 3, 32, 32))),
    "MaxViT": (lambda t: t.models.MaxVit((32, 32), 16, 4, [16, 32], [1, 1], 4, 0.0, num_classes=10),
        randn((2, 3, 32, 32))),
    "DeepLabV3": (lambda t: t.models.segmentation.deeplabv3_mobilenet_v3_large(weights_backbone=None, num_classes=5),
        randn((2, 3, 32, 32))),
    "Faster R-CNN": (lambda t: t.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights_backbone=None,
        num_classes=5, min_size=64, rpn_pre_nms_top_n_test=10), lambda: ([torch.rand(3, 64, 64)],)),
    "R3D-18": (lambda t: t.models.video.r3d_18(num_classes=10), randn((1, 3, 4, 16, 16))),
    "RAFT, small": (lambda t: t.models.optical_flow.raft_small(), randn(*[(1, 3, 128, 128)] * 2),
        {"num_flow_updates": 2}),
}  # fmt: skip
TIMM = {
    "BiT (ResNetV2-50)": (lambda t: t.create_model("resnetv2_50x1_bit", channels=(128, 256, 512, 1024), num_classes=10),
        randn((2, 3, 32, 32))),
    "DeiT": (lambda t: t.create_model("deit_tiny_distilled_patch16_224", img_size=16, patch_size=4, embed_dim=32,
        depth=2, num_heads=4, num_classes=10), randn((2, 3, 16, 16))),
    "BEiT": (lambda t: t.create_model("beit_base_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2,
        num_heads=4, num_classes=10), randn((2, 3, 16, 16))),
    "MLP-Mixer": (lambda t: t.models.mlp_mixer.MlpMixer(10, 16, 3, 4, 2, 32), randn((2, 3, 16, 16))),
    "ResMLP": (lambda t: t.models.mlp_mixer.MlpMixer(10, 16, 3, 4, 2, 32, 4, t.models.mlp_mixer.ResBlock,
        norm_layer=t.models.mlp_mixer.Affine), randn((2, 3, 16, 16))),
    "gMLP": (lambda t: t.models.mlp_mixer.MlpMixer(10, 16, 3, 4, 2, 32, 6, t.models.mlp_mixer.SpatialGatingBlock,
        t.layers.GatedMlp), randn((2, 3, 16, 16))),
    "ConvMixer": (lambda t: t.models.convmixer.ConvMixer(32, 3, 5, 4, num_classes=10), randn((2, 3, 16, 16))),
    "PoolFormer": (lambda t: t.models.metaformer.MetaFormer(3, 10, depths=(2, 2, 6, 2), dims=(16, 32, 48, 64),
        downsample_norm=None, mlp_act=nn.GELU, mlp_bias=True, norm_layers=t.models.metaformer.GroupNorm1,
        layer_scale_init_values=1e-5, res_scale_init_values=None, use_mlp_head=False), randn((2, 3, 32, 32))),
    "EfficientFormer": (lambda t: t.create_model("efficientformer_l1", embed_dims=(16, 32, 48, 64), num_classes=10),
        randn((1, 3, 224, 224))),
    "NFNet": (lambda t: t.models.nfnet.NormFreeNet(t.models.nfnet.NfCfg((1, 1, 2, 1), (32, 64, 96, 96), 0.2,
        "deep_quad", 16, 16, "se", {"rd_ratio": 0.5}, num_features=128, extra_conv=True, gamma_in_act=True,
        same_padding=True, skipinit=True, act_layer="gelu"), 10), randn((2, 3, 32, 32))),
    "CoAtNet": (lambda t: t.create_model("coatnet_nano_rw_224", img_size=64, num_classes=10), randn((2, 3, 64, 64))),
    "XCiT": (lambda t: t.create_model("xcit_nano_12_p16_224", img_size=32, depth=2, num_classes=10),
        randn((2, 3, 32, 32))),
    "LeViT": (lambda t: t.create_model("levit_128s", img_size=96, num_classes=10), randn((2, 3, 96, 96))),
    "MobileViT": (lambda t: t.create_model("mobilevit_xxs", num_classes=10), randn((2, 3, 128, 128))),
}  # fmt: skip
DIFFUSERS = {
    "UNet2DModel": (lambda d: d.UNet2DModel(8, 3, 3, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
        lambda: (torch.randn(2, 3, 8, 8), torch.tensor([3.0, 7.0]))),
    "U-Net of Stable Diffusion": (lambda d: d.UNet2DConditionModel(8, 4, 4, block_out_channels=(8, 16),
        layers_per_block=1, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=12,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=2, norm_num_groups=4),
        lambda: (torch.randn(2, 4, 8, 8), torch.tensor([3.0, 7.0]), torch.randn(2, 5, 12))),
    "AutoencoderKL": (lambda d: d.AutoencoderKL(3, 3, ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2, (8, 16),
        norm_num_groups=4, latent_channels=4), randn((2, 3, 16, 16))),
    "DiT": (lambda d: d.DiTTransformer2DModel(4, 8, 4, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=4,
        num_embeds_ada_norm=10), lambda: (torch.randn(2, 4, 8, 8), torch.tensor([3, 7]), torch.tensor([1, 2]))),
}  # fmt: skip
GEOMETRIC = {
    "GCN": (lambda g: g.GCN(4, 16, 3, 5), graph()),
    "GraphSAGE": (lambda g: g.GraphSAGE(4, 16, 3, 5), graph()),
    "GAT": (lambda g: g.GAT(4, 16, 3, 5, heads=4), graph()),
    "GIN": (lambda g: g.GIN(4, 16, 3, 5), graph()),
    "PNA": (lambda g: g.PNA(4, 16, 2, 5, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"],
        deg=torch.tensor([0, 3, 3])), graph()),
    "SchNet": (lambda g: g.SchNet(16, 16, 2, 8, interaction_graph=all_pairs), lambda: (torch.tensor([1, 6, 8, 1]),
        torch.randn(4, 3), torch.zeros(4, dtype=torch.long))),
}  # fmt: skip
CLOSED = {"use_cache": False}
DECODED = CLOSED | {"decoder_input_ids": torch.tensor([[2, 5, 9], [2, 7, 4]])}
ARCHITECTURES: dict[str, Entry] = {
    **{name: Entry("torchvision", *entry) for name, entry in TORCHVISION.items()},
    **{name: Entry("timm", *entry) for name, entry in TIMM.items()},
    "BERT": hf("Bert", "ForMaskedLM", words(), **TEXT),
    "RoBERTa": hf("Roberta", "ForMaskedLM", words(), **TEXT),
    "DistilBERT": hf("DistilBert", "ForMaskedLM", words(), vocab_size=50, max_position_embeddings=16, dim=32,
        hidden_dim=48, n_layers=2, n_heads=4),
    "ALBERT": hf("Albert", "ForMaskedLM", words(), embedding_size=16, **TEXT),
    "ELECTRA": hf("Electra", "ForPreTraining", words(), embedding_size=16, **TEXT),
    "GPT-2": hf("GPT2", "LMHeadModel", words(), CLOSED, vocab_size=50, n_positions=16, n_embd=32, n_inner=48,
        n_layer=2, n_head=4),
    "GPT-NeoX": hf("GPTNeoX", "ForCausalLM", words(), CLOSED, **TEXT),
    "OPT": hf("OPT", "ForCausalLM", words(), CLOSED, ffn_dim=48, word_embed_proj_dim=32, **TEXT),
    "Llama": hf("Llama", "ForCausalLM", words(), CLOSED, **GROUPED),
    "Qwen2": hf("Qwen2", "ForCausalLM", words(), CLOSED, **GROUPED),
    "Mistral": hf("Mistral", "ForCausalLM", words(), CLOSED, **GROUPED),
    "Mixtral": hf("Mixtral", "ForCausalLM", words(), CLOSED, num_local_experts=4, experts_implementation="batched_mm",
        **GROUPED),
    "Gemma": hf("Gemma", "ForCausalLM", words(), CLOSED, head_dim=8, **GROUPED),
    "Mamba": hf("Mamba", "ForCausalLM", words(), CLOSED, vocab_size=50, hidden_size=32, state_size=4,
        num_hidden_layers=2),
    "T5": hf("T5", "ForConditionalGeneration", words(), DECODED,
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
    "BART": hf("Bart", "ForConditionalGeneration", words(), DECODED,
        vocab_size=50, max_position_embeddings=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4),
    "ViT of transformers": hf("ViT", "ForImageClassification", randn((2, 3, 16, 16)), **SIZES, **IMAGE),
    "CLIP": hf("CLIP", "Model", words(lambda: torch.randn(2, 3, 16, 16)), text_config=TEXT | {"eos_token_id": 49},
        vision_config=SIZES | IMAGE, projection_dim=16),
    "Whisper": hf("Whisper", "ForConditionalGeneration", randn((2, 8, 32)), DECODED, vocab_size=50, num_mel_bins=8,
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=16, max_target_positions=16, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    "Wav2Vec2": hf("Wav2Vec2", "ForCTC", randn((2, 400)), vocab_size=12, conv_dim=(8, 8, 8), conv_kernel=(10, 3, 2),
        conv_stride=(5, 2, 2), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, **SIZES),
    **{name: Entry("diffusers", *entry) for name, entry in DIFFUSERS.items()},
    **{name: Entry("torch_geometric.nn", *entry) for name, entry in GEOMETRIC.items()},
}  # fmt: skip


def entries(name: str) -> Iterator[dict[str, Any]]:
    """Yields the record of an architecture: first of its space, then also of its normal form."""
    entry = ARCHITECTURES[name]
    module, inputs = entry.module(), entry.inputs()
    record: dict[str, Any] = {"weights": sum(p.numel() for p in module.parameters())}
    WeightSpace.from_module(nn.Linear(2, 2), torch.zeros(1, 2))  # imports what is needed the first time
    start = time.process_time()
    try:
        space = WeightSpace.from_module(module, inputs, kwargs=entry.options)
    except MonomialError as error:
        yield record | {"refused": shortened(error)}
        return
    record["seconds"] = round(time.process_time() - start, 1)
    dead = functools.partial(dead_parts, module=module, inputs=inputs_of(inputs), kwargs=entry.options)
    report = derive(module, inputs, kwargs=entry.options, dead=dead).origin
    left = {f"{x.operation.rsplit(': ')[-1]}: {x.reason}" for x in report.losses if x.symmetry == "permutation"}
    record |= {
        "tensors": len(space.parameters),
        "nodes": len(space.nodes),
        "permuted": sum(node.permutes for node in space.nodes.values()),
        "scalings": space.group_dimension,
        "left": sorted(x for x in {*left, *report.unknown} if x.rsplit(": ")[-1] not in USUAL),
    }
    if name in DRAWN:
        record["picture"] = str(space.draw())
    yield record
    if record["weights"] > LARGEST or record["tensors"] > MOST:
        yield record | {"formless": LARGE}
        return
    try:
        yield record | {"fibre": normal_form(module, inputs, kwargs=entry.options).fibre_dimension}
    except MonomialError as error:
        yield record | {"formless": shortened(error)}


def shortened(error: MonomialError) -> str:
    """Returns the start of an error, without the places of files."""
    return re.sub(r" at line \d+ of \S+", "", str(error)).split(". ")[0][:300]


def measured(name: str) -> dict[str, Any]:
    """Returns the record of an architecture, made by a process that is limited in time and memory."""
    command = [sys.executable, __file__, "--one", name]
    one_core = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=one_core, check=False)
    records = [json.loads(line.removeprefix(MARK)) for line in run.stdout.splitlines() if line.startswith(MARK)]
    last: dict[str, Any] = records[-1] if records else {"weights": 0, "refused": run.stderr[-500:]}
    if {"refused", "fibre", "formless"}.isdisjoint(last):
        last["formless"] = f"{PATIENCE} seconds or {MEMORY / 2**30:.0f} GiB are not enough"
    return last


def versions() -> dict[str, str]:
    """Returns the versions of the packages."""
    names = ("torch", "torchvision", "timm", "transformers", "diffusers", "torch-geometric")
    return {name: importlib.metadata.version(name).partition("+")[0] for name in names}


def table(networks: dict[str, dict[str, Any]]) -> str:
    """Returns a line for each architecture."""
    lines = ["| network | from | read | seconds | weights | permuted | scalings | fibre |", "|---" * 8 + "|"]
    for name, record in networks.items():
        package, weights = ARCHITECTURES[name].package.partition(".")[0].replace("_", "-"), f"{record['weights']:,}"
        if "refused" in record:
            lines.append(f"| {name} | {package} | **no**: {WHY[name]} | | {weights} | | | |")
            continue
        shown = f"[{name}](images/gallery/{file_of(name)})" if name in DRAWN else name
        fibre = f"{record['fibre']:,}" if "fibre" in record else "-"
        read = WHY[name] if record["left"] else "yes"
        numbers = [str(record["seconds"]), weights, *(f"{record[key]:,}" for key in ("permuted", "scalings")), fibre]
        lines.append(f"| {shown} | {package} | {read} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def tables(networks: dict[str, dict[str, Any]], packages: dict[str, str]) -> str:
    """Returns the table, and its totals."""
    refused = [name for name, record in networks.items() if "refused" in record]
    part = [name for name, record in networks.items() if record.get("left") and WHY[name].startswith("in part")]
    forms = [name for name, record in networks.items() if "fibre" in record]
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    total = (
        f"{len(networks) - len(refused)} of {len(networks)} architectures are read, {len(part)} of them in part, "
        f"{len(refused)} are refused; {len(forms)} have a normal form ({versions})."
    )
    formless: dict[str, list[str]] = {}
    for name, record in networks.items():
        if "formless" in record:
            formless.setdefault(record["formless"], []).append(name)
    reasons = [f"No normal form, {reason}: {', '.join(names)}." for reason, names in formless.items()]
    return "\n\n".join([total, table(networks), *reasons])


def written(page: str) -> str:
    """Returns the page with the recorded numbers."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    networks = {name: record["networks"][name] for name in ARCHITECTURES}
    return BLOCK.sub(lambda m: f"{m[1]}\n{tables(networks, record['versions'])}\n\n{m[2]}", page)


def file_of(name: str) -> str:
    """The name of an architecture's picture."""
    return f"{name.lower()}.svg"


def main() -> None:
    """Measures architectures that are not recorded yet, and writes the page."""
    parser = argparse.ArgumentParser(description="Derive the groups of known architectures, and write docs/gallery.md.")
    parser.add_argument("--again", nargs="*", metavar="NAME", help="measure these again, all where none is named")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        for record in entries(chosen.one):
            print(MARK + json.dumps(record), flush=True)
        return
    kept = json.loads(RECORD.read_text(encoding="utf-8"))["networks"] if RECORD.exists() else {}
    again = set(kept if chosen.again == [] else chosen.again or ())
    todo = [name for name in ARCHITECTURES if name not in kept or name in again]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(todo, 1):
        print(f"{number} of {len(todo)}: {name}", flush=True)
        kept[name] = measured(name)
        if picture := kept[name].pop("picture", None):
            (PICTURES / file_of(name)).write_text(picture, encoding="utf-8")
        record = {"versions": versions(), "networks": {n: kept[n] for n in ARCHITECTURES if n in kept}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
