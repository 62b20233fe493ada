"""The drawings of the course. Each function returns one, with its alternative text and caption beside it.

One module for each notebook that brought them. A notebook calls them as `drawings.name(...)`.
"""

from course_lib.viz.drawings.attention import (
    attention_path,
    dot_products,
    linear_map,
    linear_maps,
    one_vector,
    soft_dictionary,
)
from course_lib.viz.drawings.attention_labs import (
    leak_in_noise,
    one_state_or_all,
    score_tiles,
    spreading_nan,
    three_ways,
)
from course_lib.viz.drawings.attention_masks import batch_of_sentences, mask_grids, self_and_cross, shuffled_words
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
from course_lib.viz.drawings.positions import (
    added_places,
    alibi_slopes,
    clock_hand,
    clock_rows,
    four_products,
    hidden_far_keys,
    learned_table,
    order_lost,
    relative_buckets,
    rotary_hands,
    rotary_layouts,
    step_of_a_clock,
)
from course_lib.viz.drawings.whole import whole_transformer

__all__ = [
    "added_places",
    "alibi_slopes",
    "attention_by_hand",
    "attention_path",
    "batch_of_sentences",
    "clock_arcs",
    "clock_hand",
    "clock_rows",
    "dot_products",
    "four_products",
    "heads_add_up",
    "hidden_far_keys",
    "induction_steps",
    "leak_in_noise",
    "learned_table",
    "linear_map",
    "linear_maps",
    "local_and_global",
    "mask_and_targets",
    "mask_axes",
    "mask_grids",
    "multi_head_layer",
    "notes_and_question",
    "one_average_or_two",
    "one_state_or_all",
    "one_vector",
    "order_lost",
    "recurrent_and_attention",
    "relative_buckets",
    "rotary_hands",
    "rotary_layouts",
    "score_tiles",
    "self_and_cross",
    "sentence_arcs",
    "shared_heads",
    "shuffled_words",
    "soft_dictionary",
    "split_into_heads",
    "spreading_nan",
    "squeezed_places",
    "step_of_a_clock",
    "streaming_cache",
    "three_ways",
    "two_places_task",
    "whole_transformer",
    "window_reach",
    "writing_loop",
]
