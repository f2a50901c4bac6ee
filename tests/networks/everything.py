"""All networks of the zoo, by name."""

from networks import (  # noqa: F401  # each enters its own
    zoo_convolutional,
    zoo_corners,
    zoo_implicit,
    zoo_normalised,
    zoo_others,
    zoo_recurrent,
    zoo_sorted,
    zoo_transformers,
)
from networks.zoo import NETWORKS

__all__ = ["NETWORKS", "QUICK"]

# A network of every mechanism, cheap enough for `make test`; the others run in `make test-networks`.
QUICK = (
    "mlp_relu", "mlp_tanh", "prerms_relu", "lenet", "unet", "super_resolution", "tcn", "pointwise_depthwise", "resnext",
    "resnet_preactivation", "convnext", "weight_norm", "group_norm", "instance_norm", "mlp_square", "wire",
    "hypernetwork", "geglu", "maxout", "gru", "preln_gelu", "perceiver", "mixer", "autoencoder_tied", "lora",
    "mixture_of_experts", "text_classifier", "slices", "features_too", "shared_layer", "rezero", "modulus",
    "constant_gain", "generated_weights", "mlp_clamp", "mlp_clamp_uneven", "mlp_maximum", "bilinear",
    "experts_gathered", "weight_standardised", "fourier_operator", "state_space", "unpooled", "spatial_transformer",
)  # fmt: skip
