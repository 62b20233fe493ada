"""Answers to chapter 02 as learners write them, independent of the models; see `test_answers.py`."""

import math

import torch
import torch.nn.functional as F


def split_by_view(x, n_heads):
    return x.reshape(x.size(0), n_heads, x.size(1), -1)


def split_without_exchange(x, n_heads):
    return x.unflatten(2, (n_heads, -1))


def split_head_width_first(x, n_heads):
    B, T, D = x.shape
    return x.reshape(B, T, D // n_heads, n_heads).permute(0, 3, 1, 2)


def split_by_tensor_split(x, n_heads):
    return torch.stack(torch.tensor_split(x, n_heads, dim=2)).permute(1, 0, 2, 3)


def merge_by_view(x):
    B, H, T, E = x.shape
    return x.contiguous().view(B, T, H * E)


def merge_by_adding(x):
    return x.sum(1)


def merge_with_swapaxes(x):
    return torch.swapaxes(x, 1, 2).flatten(start_dim=2)


def tutorial_layer(x, W_query, W_key, W_value, W_output, n_heads, mask=None, divisor=None, project=True):
    B, T, D = x.shape
    width = W_query.shape[1] // n_heads
    q, k, v = ((x @ W).view(B, T, n_heads, width).transpose(1, 2) for W in (W_query, W_key, W_value))
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(divisor(D) if divisor else width)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    merged = (torch.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(B, T, -1)
    return merged @ W_output if project else merged


def scaled_by_the_model(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    return tutorial_layer(x, W_query, W_key, W_value, W_output, n_heads, mask, divisor=lambda D: D)


def without_the_last_matrix(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    return tutorial_layer(x, W_query, W_key, W_value, W_output, n_heads, mask, project=False)


def as_in_the_tutorial(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    return tutorial_layer(x, W_query, W_key, W_value, W_output, n_heads, mask)


def groups_by_repeat(query, key, value):
    times = query.shape[1] // key.shape[1]
    return F.scaled_dot_product_attention(query, key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1))


def groups_by_expand(query, key, value):
    B, G, S, E = key.shape
    times = query.shape[1] // G
    key = key[:, :, None].expand(B, G, times, S, E).reshape(B, G * times, S, E)
    value = value[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)
    return torch.softmax(query @ key.mT * E**-0.5, dim=-1) @ value


def mask_with_the_axis_in_front(query, key, value, mask):
    scores = torch.einsum("bhte,bhse->bhts", query, key) / query.size(-1) ** 0.5
    return torch.softmax(scores.masked_fill(~mask[None], -math.inf), dim=-1) @ value


def mask_repeated(query, key, value, mask):
    visible = mask.unsqueeze(1).repeat(1, query.size(1), 1, 1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def induction_on_the_copy(weights, period):
    return weights.diagonal(-period, -2, -1).mean((0, 2))


def induction_one_early(weights, period):
    return weights.diagonal(1 - period, -2, -1).mean((0, 2))


def induction_by_gather(weights, period):
    places = torch.arange(1, weights.size(-1) - period + 1)
    found = torch.take_along_dim(weights[:, :, period:], places[None, None, :, None], dim=-1)
    return found.squeeze(-1).mean(-1).mean(0)


WRONG_ANSWERS = [
    ("split_heads", split_by_view, "view-only"),
    ("split_heads", split_without_exchange, "no-transpose"),
    ("split_heads", split_head_width_first, "every-other-column"),
    ("merge_heads", merge_by_view, "reshape-only"),
    ("merge_heads", merge_by_adding, "heads-added"),
    ("multi_head_attention", scaled_by_the_model, "scale-by-model-width"),
    ("multi_head_attention", without_the_last_matrix, "no-output-matrix"),
    ("grouped_query_attention", groups_by_repeat, "tiled"),
    ("mask_for_every_head", mask_with_the_axis_in_front, "read-per-head"),
    ("induction_score", induction_on_the_copy, "reads-the-copy"),
    ("induction_score", induction_one_early, "starts-one-early"),
]

RIGHT_ANSWERS = [
    ("split_heads", split_by_tensor_split),
    ("merge_heads", merge_with_swapaxes),
    ("multi_head_attention", as_in_the_tutorial),
    ("grouped_query_attention", groups_by_expand),
    ("mask_for_every_head", mask_repeated),
    ("induction_score", induction_by_gather),
]
