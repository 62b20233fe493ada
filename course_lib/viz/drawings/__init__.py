"""The drawings of the course. Each function returns one, with its alternative text and caption beside it.

One module for each notebook that brought them. A notebook calls them as `drawings.name(...)`.
"""

from course_lib.viz.drawings.attention_labs import (
    leak_in_noise,
    one_state_or_all,
    score_tiles,
    spreading_nan,
    three_ways,
)
from course_lib.viz.drawings.overview import (
    attention_by_hand,
    mask_and_targets,
    recurrent_and_attention,
    sentence_arcs,
    writing_loop,
)
from course_lib.viz.drawings.whole import whole_transformer

__all__ = [
    "attention_by_hand",
    "leak_in_noise",
    "mask_and_targets",
    "one_state_or_all",
    "recurrent_and_attention",
    "score_tiles",
    "sentence_arcs",
    "spreading_nan",
    "three_ways",
    "whole_transformer",
    "writing_loop",
]
