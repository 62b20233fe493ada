"""How many bytes a Transformer needs, by formula: weights, gradients, optimizer, and the cache of a generator.

What the layers keep for the backward pass stands in `activations`.
"""

from collections import Counter
from typing import Annotated, Literal

import torch

from course_lib.checks import Count, Within, checked
from course_lib.config import TransformerConfig
from course_lib.scaling.activations import activation_bytes
from course_lib.scaling.parameters import Architecture, count_parameters

Optimizer = Literal["sgd", "momentum", "adamw"]
_STATES = {"sgd": 0, "momentum": 1, "adamw": 2}  # numbers kept for each parameter


@checked
def kv_cache_bytes(
    config: TransformerConfig,
    batch: Count,
    length: Count,
    *,
    dtype: torch.dtype = torch.float32,
    source_length: Count | None = None,
) -> int:
    """Bytes of the keys and values of `length` positions: 2 layers batch G length E, times the bytes of a number.

    Args:
        config: sizes and switches.
        batch: B, sequences (beams count).
        length: positions cached; a `window` caps them at twice its width, the room a sliding cache keeps.
        dtype: of keys and values.
        source_length: S, for an encoder-decoder: the cross-attention keeps the source's too.

    Raises ValueError for sizes that are not positive.
    """
    windows = [config.window_of(layer) for layer in range(config.n_decoder_layers)]
    positions = sum(length if window is None else 2 * window for window in windows)  # of all layers
    positions += len(windows) * (source_length or 0)
    return 2 * batch * config.setting("n_kv_heads") * positions * config.setting("d_head") * dtype.itemsize


@checked
def training_memory(
    config: TransformerConfig,
    batch: Count,
    length: Count,
    *,
    architecture: Architecture = "decoder",
    source_length: Count | None = None,
    optimizer: Optimizer = "adamw",
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
    ranks: Count = 1,
    sharding: Literal[0, 1, 2, 3] = 0,
) -> Counter[str]:
    """Bytes that each process needs to train a model, by what they hold; `.total()` is their sum.

    Args:
        config: sizes and switches; dropout is taken to be off.
        batch: B, sequences of each process.
        length: T, tokens of each; source_length: S, of an encoder-decoder.
        architecture: as for `count_parameters`.
        optimizer: "adamw" keeps two numbers for each parameter, "momentum" one, "sgd" none.
        dtype: of weights, gradients, optimizer and activations. Under autocast the first three stay float32.
        recompute: keep only the input of each layer and compute the rest again (activation checkpointing).
        ranks: processes that share the work.
        sharding: what is split between them: 0 nothing (DDP), 1 the optimizer, 2 also gradients, 3 also weights (FSDP).
            Source: Rajbhandari et al. 2020 (ZeRO), section 5.

    Returns:
        A Counter with "weights", "gradients", "optimizer" and "activations". Temporary buffers of kernels and of the
        allocator come on top.
    """
    whole = count_parameters(config, architecture).total() * dtype.itemsize
    part = -(-whole // ranks)  # rounded up
    return Counter(
        {
            "weights": part if sharding >= 3 else whole,
            "gradients": part if sharding >= 2 else whole,
            "optimizer": _STATES[optimizer] * (part if sharding >= 1 else whole),
            "activations": activation_bytes(
                config,
                batch,
                length,
                architecture=architecture,
                source_length=source_length,
                dtype=dtype,
                recompute=recompute,
            ),
        }
    )


@checked
def ring_all_reduce_bytes(n_bytes: Annotated[int, Within(0)], ranks: Count) -> int:
    """Bytes that each process sends to sum `n_bytes` over all of them in a ring: 2 (ranks - 1) / ranks of them.

    Half is the reduce-scatter, half the all-gather, so that FSDP's stage 3, which gathers the weights twice and
    reduces once, sends one and a half times as much. Source: Patarasuk and Yuan 2009, section 3.
    """
    chunk = -(-n_bytes // ranks)  # the last one may be shorter
    return 2 * (ranks - 1) * chunk
