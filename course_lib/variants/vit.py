"""ViT: the encoder of norms before the sublayers, on patches of an image in place of tokens.

Shapes: B batch, C channels, P width of a patch, N patches, D model width.
Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from course_lib.checks import Count, check_choice, check_declared, check_integer, check_kind
from course_lib.config import TransformerConfig
from course_lib.encoder import TransformerEncoder
from course_lib.layers import init_weights
from course_lib.transformer import Embedding
from course_lib.variants.config_entries import ACTIVATIONS, Entry, refuse
from course_lib.variants.folders import Weights
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, has_pooler, register

_ARCHITECTURES = ("ViTModel", "ViTForImageClassification")


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut images into patches, row by row: (B, C, height, width) -> (B, N, C * P * P).

    Raises ValueError if the images are no multiple of the patch.
    """
    check_kind("images", images, Tensor)
    check_declared("patch", patch, tuple[Count, Count])
    if images.dim() != 4 or images.size(2) % patch[0] or images.size(3) % patch[1]:
        raise ValueError(
            f"images: expected (B, C, height, width), a multiple of patches of {patch}, got {tuple(images.shape)}"
        )
    B, C, height, width = images.shape
    rows, columns = height // patch[0], width // patch[1]
    cut = images.reshape(B, C, rows, patch[0], columns, patch[1])  # (B, C, rows, P, columns, P)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, -1)  # -> (B, rows, columns, C, P, P) -> (B, N, CPP)


class ViT(PublishedModel):
    """ViT; `ViT(ViT.configure(d_model=..., ...), image_size=224, patch_size=16)` builds one with new weights.

    Args:
        config: `max_length` is N + 1, one place for each patch and one for the class token; set from the sizes by
            `configure(image_size=..., patch_size=...)`.
        image_size, patch_size: an integer, or height and width, in pixels.
        n_channels: C.
        n_classes: with it the first vector goes through a linear map to logits (B, n_classes).
        pooler: whether there is a pooler (a map and tanh on the first vector), without a classifier only.
    """

    model_types = ("vit",)
    switches: ClassVar[Mapping[str, Any]] = {
        "n_decoder_layers": 0,
        "positions": "learned",
        "activation": "gelu",
        "norm_place": "pre",
        "norm_eps": 1e-12,
        "scale_embeddings": False,
        "tie_embeddings": False,
        "dropout": 0.0,
        "activation_dropout": 0.0,
        "init": "normal",
    }
    entries = (
        Entry("hidden_size", "d_model"),
        Entry("num_attention_heads", "n_heads"),
        Entry("intermediate_size", "d_ff"),
        Entry("num_hidden_layers", "n_encoder_layers"),
        Entry("hidden_act", "activation", "gelu", ACTIVATIONS),
        Entry("layer_norm_eps", "norm_eps", 1e-12),
        Entry("qkv_bias", "qkv_bias", True),
        Entry("hidden_dropout_prob", "dropout", 0.0),
        Entry("attention_probs_dropout_prob", "attention_dropout", 0.0),
        Entry("initializer_range", "init_std", 0.02),
    )
    more_fields = ("max_length",)
    refused: ClassVar[Mapping[str, Any]] = {"pooler_act": "tanh"}
    names = NameTable(
        {
            "class_token": "vit.embeddings.cls_token",
            "patches": "vit.embeddings.patch_embeddings.projection",
            "embedding.positions.weight": "vit.embeddings.position_embeddings",
            "encoder.final_norm": "vit.layernorm",
            "pooler": "vit.pooler.dense",
            "classifier": "classifier",
            **layer_names(
                "encoder",
                "vit.encoder.layer.{}",
                {
                    "self_attention_residual.norm": "layernorm_before",
                    "self_attention.query": "attention.attention.query",
                    "self_attention.key": "attention.attention.key",
                    "self_attention.value": "attention.attention.value",
                    "self_attention.output": "attention.output.dense",
                    "feed_forward_residual.norm": "layernorm_after",
                    "feed_forward.up": "intermediate.dense",
                    "feed_forward.down": "output.dense",
                },
            ),
        },
        prefix="vit.",
        renamed=(
            (r"(^|vit\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
            (r"attention\.q_proj", "attention.attention.query"),
            (r"attention\.k_proj", "attention.attention.key"),
            (r"attention\.v_proj", "attention.attention.value"),
            (r"attention\.o_proj", "attention.output.dense"),
            (r"mlp\.fc1", "intermediate.dense"),
            (r"mlp\.fc2", "output.dense"),
        ),
        heads=("classifier.", "vit.pooler."),
        ignored=(r"embeddings\.mask_token$",),
    )
    heads = ("pooler.", "classifier.")

    def __init__(
        self,
        config: TransformerConfig,
        *,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        n_channels: int = 3,
        n_classes: int | None = None,
        pooler: bool = False,
    ) -> None:
        super().__init__()
        image, patch = _pair("image_size", image_size), _pair("patch_size", patch_size)
        if image[0] % patch[0] or image[1] % patch[1]:
            raise ValueError(f"patch_size: expected a divisor of image_size={image}, got {patch}")
        check_integer("n_channels", n_channels)
        check_integer("n_classes", n_classes, or_none=True)
        places = _places(image, patch)
        if config.max_length != places or config.vocab_size is not None:
            raise ValueError(
                f"config: expected max_length={places}, patches and class token, and no vocab_size, "
                f"got {config.max_length} and {config.vocab_size}"
            )
        self.config, self.image_size, self.patch_size = config, image, patch
        self.n_channels, self.n_classes = n_channels, n_classes
        self.patches = nn.Linear(n_channels * patch[0] * patch[1], config.d_model)
        self.class_token = nn.Parameter(torch.empty(config.d_model))
        self.embedding = Embedding(config, None)
        self.encoder = TransformerEncoder(config)
        self.pooler = nn.Linear(config.d_model, config.d_model) if pooler and n_classes is None else None
        self.classifier = None if n_classes is None else nn.Linear(config.d_model, n_classes)
        for part in (self.patches, self.pooler, self.classifier):
            if part is not None:
                init_weights(part, config, n_residuals=1)
        nn.init.normal_(self.class_token, std=config.init_std)

    @classmethod
    def configure(cls, **changes: Any) -> TransformerConfig:
        """Return the row of switches with sizes filled in; image_size and patch_size give max_length."""
        image, patch = changes.pop("image_size", 224), changes.pop("patch_size", 16)
        places = _places(_pair("image_size", image), _pair("patch_size", patch))
        return super().configure(**{"max_length": places, **changes})

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, C, height, width) to vectors (B, 1 + N, D), that of the class token first."""
        if images.dim() != 4 or tuple(images.shape[1:]) != (self.n_channels, *self.image_size):
            raise ValueError(
                f"images: expected (B, {self.n_channels}, {self.image_size[0]}, {self.image_size[1]}), "
                f"got {tuple(images.shape)}"
            )
        x = self.patches(patchify(images, self.patch_size))  # (B, N, C * P * P) -> (B, N, D)
        first = self.class_token.expand(x.size(0), 1, -1)  # (D,) -> (B, 1, D)
        x = self.embedding(torch.cat([first, x], dim=1))  # (B, 1 + N, D)
        return self.encoder(x)

    def pool(self, vectors: Tensor) -> Tensor:
        """The pooled first vector: (B, 1 + N, D) -> (B, D). Raises ValueError without a pooler."""
        if self.pooler is None:
            raise ValueError("pooler: this model has none; build it with pooler=True")
        return torch.tanh(self.pooler(vectors[:, 0]))

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, height, width) to logits (B, n_classes), or to vectors (B, 1 + N, D) without a classifier."""
        vectors = self.encode(images)
        return vectors if self.classifier is None else self.classifier(vectors[:, 0])

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`, and the sizes of the images."""
        refuse(found, pooler_output_size=found["hidden_size"])
        changes, _ = super().read(found, weights)
        kind = (found.get("architectures") or ["ViTModel"])[0]
        check_choice("architectures", kind, _ARCHITECTURES)
        sizes = {"image_size": found.get("image_size", 224), "patch_size": found.get("patch_size", 16)}
        arguments = {**sizes, "n_channels": found.get("num_channels", 3), "pooler": has_pooler(weights)}
        if kind == "ViTForImageClassification" and "classifier.weight" in weights.file_of:
            arguments["n_classes"] = weights.shape("classifier.weight")[0]
        return {**changes, **sizes}, arguments

    @property
    def is_body(self) -> bool:
        """Whether there is no classifier, so that published names have no prefix."""
        return self.classifier is None

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """Our parameter -> its published shape: patches as a convolution, axes of size 1."""
        return {
            "patches.weight": (self.config.d_model, self.n_channels, *self.patch_size),
            "class_token": (1, 1, self.config.d_model),
            "embedding.positions.weight": (1, self.config.max_length, self.config.d_model),
        }

    @property
    def architecture(self) -> str:
        """The class of `transformers` that reads what is written."""
        return _ARCHITECTURES[self.classifier is not None]

    def write(self) -> dict[str, Any]:
        """The published config."""
        sizes = {"image_size": _one_or_two(self.image_size), "patch_size": _one_or_two(self.patch_size)}
        return {**super().write(), **sizes, "num_channels": self.n_channels}


def _pair(name: str, size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair):
        raise ValueError(f"{name}: expected an integer of at least 1, or height and width, got {size!r}")
    return pair


def _one_or_two(pair: tuple[int, int]) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)


def _places(image: tuple[int, int], patch: tuple[int, int]) -> int:
    return (image[0] // patch[0]) * (image[1] // patch[1]) + 1


def _vit(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_encoder_layers": layers}
    return Published(ViT, sizes, stated, "torchvision, num_params of the weights", {"n_classes": 1000})


register(
    ViT,
    {"vit-base-patch16-224": _vit(768, 12, 12, 86_567_656), "vit-large-patch16-224": _vit(1024, 16, 24, 304_326_632)},
)
