"""Exercises of chapter 04, the encoder. `EXERCISES` gives their order; each is a module of that name."""

EXERCISES = [
    "feed_forward",
    "layer_norm",
    "no_residual",
    "token_similarity",
    "encoder_layer",
    "sentence_vector",
    "encoder_parameters",
    "bert_parameters",
]
