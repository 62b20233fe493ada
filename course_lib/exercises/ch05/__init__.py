"""Exercises of chapter 05, the decoder. `EXERCISES` gives their order; each is a module of that name."""

EXERCISES = [
    "shift_right",
    "decoder_layer",
    "bigram_loss",
    "sampling_order",
    "top_p_filter",
    "beam_step",
    "length_penalty",
    "positions_without_cache",
    "kv_cache_step",
    "tokens_a_check",
]
