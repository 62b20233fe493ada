"""Exercises of chapter 01, attention. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "soft_lookup",
    "equal_keys",
    "stable_softmax",
    "batched_attention",
    "cross_attention_shapes",
    "score_spread",
    "attention_entropy",
    "causal_mask",
    "dependency_map",
    "leaky_attention",
    "padding_mask",
    "combine_masks",
    "masked_softmax",
    "scaled_dot_product_attention",
    "permuted_tokens",
    "attention_memory",
    "crossover_length",
]
