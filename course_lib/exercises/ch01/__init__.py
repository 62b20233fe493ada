"""Exercises of chapter 01, attention. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "scaled_dot_product_attention",
    "causal_mask",
    "attention_memory",
]
