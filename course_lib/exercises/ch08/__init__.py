"""Exercises of chapter 08, scaling. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "count_parameters",
    "count_flops",
    "kv_cache_bytes",
    "mfu",
    "fit_power_law",
    "compute_optimal",
    "sharded_bytes",
    "ring_all_reduce_bytes",
]
