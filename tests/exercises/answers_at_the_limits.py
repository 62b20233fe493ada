"""Answers that go wrong only at a limit that the prompt names: very low scores, tiny spreads, zeros, long texts."""

import math

import torch
import torch.nn.functional as F


def maximum_of_the_filled(scores, mask):
    """Looks for the maximum among scores in which -1e9 stands for hidden ones."""
    fill = max(-1e9, torch.finfo(scores.dtype).min)
    largest = scores.masked_fill(~mask, fill).amax(-1, keepdim=True)
    powers = (scores - largest.detach()).masked_fill(~mask, -math.inf).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1.0)


def infinity_cut(scores, dim=-1):
    """Clamps minus infinity."""
    scores = scores.clamp(min=-1e9)
    powers = (scores - scores.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


def step_size_first(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
    """Puts both corrections into the rate, as the paper's second form does, but leaves eps as it is."""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    rate_now = rate * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    return weight - rate * decay * weight - rate_now * m / (v.sqrt() + eps), m, v


def vectors_do_not_decay(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
    """Leaves weights of one axis, such as biases, without decay."""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    step = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps)
    return weight * (1 - rate * decay if weight.dim() > 1 else 1) - rate * step, m, v


def beams_by_products(scores, log_probabilities, n_beams):
    """Multiplies probabilities."""
    V = log_probabilities.size(1)
    products = scores.exp()[:, None] * log_probabilities.exp()
    best, flat = products.flatten().topk(n_beams)
    return best.log(), flat // V, flat % V


def heads_mask_for_sentences(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    """Takes every mask of three axes for one of (B, T, T)."""
    B, T = x.shape[:2]
    query, key, value = ((x @ W).view(B, T, n_heads, -1).transpose(1, 2) for W in (W_query, W_key, W_value))
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return heads.transpose(1, 2).reshape(B, T, -1) @ W_output


def example_of_the_step(state, data, updates):
    """Takes the example with the number of the step, and counts the position beside it."""
    weight, momentum, step = state["weight"], state["momentum"], state["step"]
    for _ in range(updates):
        example = data[step % len(data)]
        step += 1
        momentum = momentum / 2 + (weight @ example - 1) * example
        weight = weight - 0.125 / math.sqrt(step) * momentum
    position = (state["position"] + updates) % len(data)
    return {"weight": weight, "momentum": momentum, "step": step, "position": position}


def zero_tokens_for_padding(x, real):
    """Counts the tokens that are not zero."""
    kept = x * real.unsqueeze(-1)
    return kept.sum(1) / (kept.abs().sum(-1) > 0).sum(1, keepdim=True)


def guarded_preference(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
    """Guards the logarithm."""
    margins = (policy_chosen - reference_chosen) - (policy_refused - reference_refused)
    return -(torch.sigmoid(beta * margins) + 1e-8).log().mean(), margins


def no_query_left_alone(*masks):
    """Lets a query that is left with nothing see everything."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    visible = given[0]
    for mask in given[1:]:
        visible = torch.logical_and(visible, mask)
    return visible | ~visible.any(-1, keepdim=True)


def silu_by_hand(x, gate, up, down):
    """Writes SiLU with exponentials that overflow."""
    z = x @ gate.T
    return (z * z.exp() / (1 + z.exp()) * (x @ up.T)) @ down.T


def advantages_by_case(rewards):
    """Divides by the bare deviation and takes care of equal rewards."""
    spread = rewards.std(1, keepdim=True)
    return torch.where(spread == 0, 0.0, (rewards - rewards.mean(1, keepdim=True)) / spread)


def advantages_clamped(rewards):
    """Keeps the deviation above the small number."""
    return (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True).clamp(min=1e-4)


def last_row_of_the_mask(query, key, value, mask):
    """Reads the mask of the last query for all."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, -1:])


def number_as_a_tensor(logits, targets, smoothing, pad_id):
    """Returns the number of real targets as a tensor, and a zero of its own where there are none."""
    real = targets != pad_id
    if not real.any():
        return logits.new_zeros(()), real.sum()
    return F.cross_entropy(logits[real], targets[real], label_smoothing=smoothing), real.sum()


def cosines_of_the_dtype(x, positions):
    """Rounds cosine and sine to the dtype of x, as many implementations do."""
    E = x.size(-1)
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, E, 2) / E)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., : E // 2], x[..., E // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def share_kept_below_one(parameters, layers, width, length, tokens_per_second, devices, peak):
    """Clamps the share."""
    per_token = 6 * parameters + 12 * layers * width * length
    return min(1.0, per_token * tokens_per_second / (devices * peak))


WRONG_ANSWERS = [
    ("masked_softmax", maximum_of_the_filled, "maximum-kept-up"),
    ("stable_softmax", infinity_cut, "cut-below"),
    ("adamw_step", step_size_first, "eps-before-the-correction"),
    ("adamw_step", vectors_do_not_decay, "matrices-only"),
    ("beam_step", beams_by_products, "probabilities-multiplied"),
    ("multi_head_attention", heads_mask_for_sentences, "mask-by-sentence"),
    ("resume_state", example_of_the_step, "example-from-step"),
    ("sentence_vector", zero_tokens_for_padding, "zero-tokens-not-counted"),
    ("dpo_loss", guarded_preference, "small-number-in-the-logarithm"),
    ("combine_masks", no_query_left_alone, "empty-rows-opened"),
    ("swiglu", silu_by_hand, "exponential-overflows"),
    ("group_advantages", advantages_by_case, "no-small-number"),
    ("group_advantages", advantages_clamped, "at-least-the-small-number"),
    ("mask_for_every_head", last_row_of_the_mask, "last-row-for-all"),
]
RIGHT_ANSWERS = [
    ("label_smoothed_loss", number_as_a_tensor),
    ("apply_rotary", cosines_of_the_dtype),
    ("mfu", share_kept_below_one),
]
