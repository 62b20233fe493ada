"""Exercises of chapter 02, multi-head attention. `EXERCISES` gives their order; each is a module of that name."""

EXERCISES = [
    "split_heads",
    "merge_heads",
    "multi_head_attention",
    "mask_for_every_head",
    "head_parameters",
    "induction_score",
    "grouped_query_attention",
    "grouped_cache_bytes",
]
