"""Exercises of chapter 07, variants. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "bert_embeddings",
    "mask_tokens",
    "t5_bucket",
    "swiglu",
    "patchify",
    "sliding_window_mask",
    "window_pairs",
    "linear_attention",
    "online_softmax",
    "route_experts",
    "moe_active_parameters",
    "lora_merge",
]
