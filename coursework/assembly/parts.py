"""Which exercises are parts of the assembled module, in the order of the chapters.

A part is called by the module as the exercise asks for it. Exercises that solve the same task in another form stay
out: `multi_head_attention` and `kv_cache_step` (the module's attention has heads, rotary positions and a cache at
once), `shift_right` and `shift_targets` (it shifts by slicing), `layer_norm`, `adam_step`.
"""

PARTS = {
    "scaled_dot_product_attention": (1, "attention"),
    "causal_mask": (1, "causal_mask"),
    "padding_mask": (1, "padding_mask"),
    "split_heads": (2, "split_heads"),
    "merge_heads": (2, "merge_heads"),
    "apply_rotary": (3, "apply_rotary"),
    "feed_forward": (4, "feed_forward"),
    "layer": (4, "Layer"),
    "encoder": (4, "Encoder"),
    "classifier": (4, "Classifier"),
    "gpt": (5, "GPT"),
    "generate": (5, "generate"),
    "top_p_filter": (5, "top_p_filter"),
    "decoder_block": (5, "DecoderLayer"),
    "adamw_step": (6, "adamw_step"),
    "training_step": (6, "training_step"),
    "training_loop": (6, "training_loop"),
}
"""By exercise, the chapter after which it goes in, and the name of its function or class."""

LAST = max(chapter for chapter, _ in PARTS.values())
FUNCTIONS = {one: name for one, (_, name) in PARTS.items()}


def up_to(chapter: int) -> list[str]:
    """The exercises whose parts the module holds after a chapter."""
    return [one for one, (own, _) in PARTS.items() if own <= chapter]
