"""Exercises of chapter 06, training. `EXERCISES` gives their order in the course; each is a module of that name."""

EXERCISES = [
    "bpe_merge",
    "shift_targets",
    "bucket_batches",
    "padding_share",
    "label_smoothed_loss",
    "smoothing_floor",
    "noam_rate",
    "first_update",
    "accumulate_gradients",
    "clip_gradients",
    "initial_loss",
    "resume_state",
]
