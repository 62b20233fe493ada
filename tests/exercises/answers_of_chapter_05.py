"""Answers to chapter 05 as learners write them, independent of the models; see `test_answers.py`."""

import torch
import torch.nn.functional as F


def shift_by_roll_alone(targets, start_id):
    return torch.roll(targets, 1, 1)


def shift_the_other_way(targets, start_id):
    return F.pad(targets[:, 1:], (0, 1), value=start_id)


def shift_in_place_of_a_copy(targets, start_id):
    result = targets.clone()
    result[:, 1:] = targets[:, :-1]
    result[:, 0] = start_id
    return result


def step_with_torchs_flag(x, keys, values, W_query, W_key, W_value):
    keys, values = torch.cat((keys, x @ W_key), 1), torch.cat((values, x @ W_value), 1)
    return F.scaled_dot_product_attention(x @ W_query, keys, values, is_causal=True), keys, values


def step_without_a_mask(x, keys, values, W_query, W_key, W_value):
    keys, values = torch.cat((keys, x @ W_key), 1), torch.cat((values, x @ W_value), 1)
    return F.scaled_dot_product_attention(x @ W_query, keys, values), keys, values


def nucleus_of_a_known_gist(logits, p):
    ordered, order = torch.sort(logits, descending=True)
    remove = ordered.softmax(-1).cumsum(-1) > p
    remove[..., 1:] = remove[..., :-1].clone()  # shifted, so that the crossing token stays
    remove[..., 0] = False
    return logits.masked_fill(remove.scatter(1, order, remove), float("-inf"))


def nucleus_without_the_shift(logits, p):
    ordered, order = torch.sort(logits, descending=True)
    remove = ordered.softmax(-1).cumsum(-1) > p
    return logits.masked_fill(remove.scatter(1, order, remove), float("-inf"))


def beams_by_last_token(scores, log_probabilities, n_beams):
    best, flat = log_probabilities.flatten().topk(n_beams)
    return best, flat // log_probabilities.shape[1], flat % log_probabilities.shape[1]


def beams_by_divmod_of_k(scores, log_probabilities, n_beams):
    best, flat = (scores.unsqueeze(-1) + log_probabilities).view(-1).topk(n_beams)
    return best, flat // len(scores), flat % len(scores)


def beams_with_the_parent_by_k(scores, log_probabilities, n_beams):
    best, flat = (scores.unsqueeze(-1) + log_probabilities).view(-1).topk(n_beams)
    return best, flat // len(scores), flat % log_probabilities.size(1)


WRONG_ANSWERS = [
    ("shift_right", shift_by_roll_alone, "last-wraps-around"),
    ("shift_right", shift_the_other_way, "shifts-left"),
    ("kv_cache_step", step_with_torchs_flag, "mask-aligned-top-left"),
    ("kv_cache_step", step_without_a_mask, "no-mask"),
    ("top_p_filter", nucleus_without_the_shift, "crossing-token-dropped"),
    ("beam_step", beams_by_last_token, "past-forgotten"),
    ("beam_step", beams_by_divmod_of_k, "divided-by-the-wrong-size"),
    ("beam_step", beams_with_the_parent_by_k, "parent-by-the-wrong-size"),
]

RIGHT_ANSWERS = [("shift_right", shift_in_place_of_a_copy), ("top_p_filter", nucleus_of_a_known_gist)]
