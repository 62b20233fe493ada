"""Which exercises are parts of the assembled module.

A part is called by the module as the exercise asks for it. Others solve the same task in another form, and stay out:
`shift_targets` (the module shifts with `shift_right`), `accumulate_gradients` (its loss is given, for one matrix),
`grouped_query_attention` and `alibi_bias` (variants), `streaming_cache`, `beam_step`, `bpe_merge`.
"""

PARTS = (
    "scaled_dot_product_attention",
    "causal_mask",
    "padding_mask",
    "combine_masks",
    "split_heads",
    "merge_heads",
    "multi_head_attention",
    "kv_cache_step",
    "sinusoidal_encoding",
    "apply_rotary",
    "feed_forward",
    "layer_norm",
    "encoder_layer",
    "decoder_layer",
    "shift_right",
    "label_smoothed_loss",
    "top_p_filter",
    "noam_rate",
    "clip_gradients",
    "adam_step",
)
"""Ids of the exercises, in the order of the module."""

FUNCTIONS = {one: "attention" if one == "scaled_dot_product_attention" else one for one in PARTS}
"""By exercise, the name of its function."""
