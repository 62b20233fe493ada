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
from course_lib.viz.drawings.heads import (
    heads_add_up,
    induction_steps,
    mask_axes,
    multi_head_layer,
    one_average_or_two,
    shared_heads,
    split_into_heads,
    two_places_task,
)
from course_lib.viz.drawings.long_context import (
    clock_arcs,
    local_and_global,
    notes_and_question,
    squeezed_places,
    streaming_cache,
    window_reach,
)
from course_lib.viz.drawings.overview import (
    attention_by_hand,
    mask_and_targets,
    recurrent_and_attention,
    sentence_arcs,
    writing_loop,
)
from course_lib.viz.drawings.whole import (
    whole_transformer,
)

__all__ = [
    "attention_by_hand",
    "clock_arcs",
    "heads_add_up",
    "induction_steps",
    "leak_in_noise",
    "local_and_global",
    "mask_and_targets",
    "mask_axes",
    "multi_head_layer",
    "notes_and_question",
    "one_average_or_two",
    "one_state_or_all",
    "recurrent_and_attention",
    "score_tiles",
    "sentence_arcs",
    "shared_heads",
    "split_into_heads",
    "spreading_nan",
    "squeezed_places",
    "streaming_cache",
    "three_ways",
    "two_places_task",
    "whole_transformer",
    "window_reach",
    "writing_loop",
]
