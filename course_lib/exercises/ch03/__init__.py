"""Exercises of chapter 03, positions. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "sinusoidal_encoding",
    "longest_wavelength",
    "first_rise",
    "position_shift_matrix",
    "apply_rotary",
    "cache_restart",
    "padded_positions",
    "alibi_bias",
    "distance_bucket",
    "token_to_position",
]
