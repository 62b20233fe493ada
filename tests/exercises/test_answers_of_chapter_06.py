"""Answers to chapter 06 as learners write them, independent of the models: wrong ones get their name."""

import math
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from coursework.exercises import registry
from coursework.exercises.bank.accumulate_gradients import summed_loss
from coursework.exercises.engine.diagnose import RIGHT, WRONG, examiner


def rate_of_lambda_lr(step, d_model, warmup):
    step -= 1  # as a scheduler counts
    return 0.0 if step == 0 else d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def rate_with_the_wrong_power(step, d_model, warmup):
    return (1 / math.sqrt(d_model)) * min(1 / math.sqrt(step), step / math.sqrt(warmup))


def rate_by_logarithms(step, d_model, warmup):
    late = -0.5 * math.log(step)
    early = math.log(step) - 1.5 * math.log(warmup)
    return math.exp(min(late, early) - 0.5 * math.log(d_model))


def loss_of_torch(logits, targets, smoothing, pad_id):
    real = int((targets != pad_id).sum())
    loss = F.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=pad_id, label_smoothing=smoothing
    )  # (B, V, T) as torch wants it
    return loss, real


def loss_over_the_wrong_tokens(logits, targets, smoothing, pad_id):
    V = logits.size(-1)
    wanted = torch.full_like(logits, smoothing / (V - 1)).scatter(-1, targets[..., None], 1 - smoothing)
    real = targets != pad_id
    costs = torch.where(real, -(wanted * logits.log_softmax(-1)).sum(-1), 0.0)
    return costs.sum() / max(int(real.sum()), 1), int(real.sum())


def loss_of_selected_rows(logits, targets, smoothing, pad_id):
    kept = targets != pad_id
    chosen, ids = logits[kept], targets[kept]  # (N, V), (N,)
    total = F.cross_entropy(chosen, ids, label_smoothing=smoothing, reduction="sum")
    return total / max(len(ids), 1), len(ids)


def shift_by_roll(sentences, bos_id, eos_id, pad_id):
    width = max(map(len, sentences)) + 2
    target = torch.tensor([[bos_id, *s, eos_id, *[pad_id] * (width - 2 - len(s))] for s in sentences])
    return target[:, :-1], target[:, :-1]


def shift_with_the_start_sign(sentences, bos_id, eos_id, pad_id):
    width = max(map(len, sentences)) + 2
    rows = [[bos_id, *s, eos_id, *[pad_id] * (width - 2 - len(s))] for s in sentences]
    inputs = [[bos_id, *s, *[pad_id] * (width - 1 - len(s))] for s in sentences]
    return torch.tensor(inputs), torch.tensor(rows)


def shift_by_filling(sentences, bos_id, eos_id, pad_id):
    shape = len(sentences), max(map(len, sentences)) + 1
    inputs, labels = torch.full(shape, pad_id), torch.full(shape, pad_id)
    inputs[:, 0] = bos_id
    for i, s in enumerate(sentences):
        for t, id in enumerate(s):
            inputs[i, t + 1] = labels[i, t] = id
        labels[i, len(s)] = eos_id
    return inputs, labels


def accumulate_as_in_many_programs(weight, batches):
    parameter = weight.detach().clone().requires_grad_()
    for batch in batches:
        loss, count = summed_loss(parameter, batch)
        (loss / count / len(batches)).backward()
    return parameter.grad


def accumulate_with_zero_grad_inside(weight, batches):
    parameter = weight.detach().clone().requires_grad_()
    tokens = 0
    for batch in batches:
        parameter.grad = None
        loss, count = summed_loss(parameter, batch)
        loss.backward()
        tokens += count
    return parameter.grad / tokens


def accumulate_by_weighted_means(weight, batches):
    losses = [summed_loss(weight, batch) for batch in batches]
    tokens = sum(count for _, count in losses)
    mean = sum(loss / max(count, 1) * (count / tokens) for loss, count in losses)
    return torch.autograd.grad(mean, weight)[0]


def clip_with_a_loop_over_tensors(gradients, max_norm):
    total = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients]))
    return [g if g.norm() <= max_norm else g * max_norm / g.norm() for g in gradients], total


def clip_by_value(gradients, max_norm):
    total = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in gradients]))
    return [torch.clip(g, -max_norm, max_norm) for g in gradients], total


def clip_with_foreach(gradients, max_norm):
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = 1.0 if total <= max_norm else max_norm / total
    return list(torch._foreach_mul(gradients, factor)), total


def merge_without_counts(words):
    pairs = defaultdict(int)
    for word in words:
        for a, b in pairwise(word):
            pairs[a, b] += 1
    best = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[0][0]
    return best, {_joined(word, best): count for word, count in words.items()}


def merge_first_seen(words):
    pairs = defaultdict(int)
    for word, count in words.items():
        for a, b in pairwise(word):
            pairs[a, b] += count
    best = max(pairs, key=pairs.get)
    return best, {_joined(word, best): count for word, count in words.items()}


def merge_with_a_marker(words):
    pairs = defaultdict(int)
    for word, count in words.items():
        for a, b in pairwise(word):
            pairs[a, b] += count
    top = max(pairs.values())
    best = min(pair for pair in pairs if pairs[pair] == top)
    return best, {_joined(word, best): count for word, count in words.items()}


def _joined(word, pair):
    tokens, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            tokens.append(word[i] + word[i + 1])
            i += 2
        else:
            tokens.append(word[i])
            i += 1
    return tuple(tokens)


def bucket_by_sums(lengths, max_tokens):
    batches, current = [], []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if current and sum(lengths[i] for i in current) + lengths[n] > max_tokens:
            batches.append(current)
            current = []
        current.append(n)
    return [*batches, current] if current else batches


def bucket_without_the_last(lengths, max_tokens):
    batches, current = [], []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if current and (len(current) + 1) * lengths[n] > max_tokens:
            batches.append(current)
            current = []
        current.append(n)
    return batches


def bucket_from_a_queue(lengths, max_tokens):
    waiting = [n for _, n in sorted((length, n) for n, length in enumerate(lengths))]
    batches = []
    while waiting:
        size = 1
        while size < len(waiting) and (size + 1) * lengths[waiting[size]] <= max_tokens:
            size += 1
        batches.append(waiting[:size])
        waiting = waiting[size:]
    return batches


def resume_without_momentum(state, data, updates):
    weight, momentum = state["weight"].clone(), torch.zeros_like(state["weight"])
    step, position = state["step"], state["position"]
    for _ in range(updates):
        step += 1
        momentum = 0.5 * momentum + (weight @ data[position] - 1) * data[position]
        weight = weight - 0.125 / step**0.5 * momentum
        position = (position + 1) % len(data)
    return {"weight": weight, "momentum": momentum, "step": step, "position": position}


def loss_with_a_share_too_large(logits, targets, smoothing, pad_id):
    V = logits.size(-1)
    wanted = F.one_hot(targets, V) * (1 - smoothing) + smoothing / (V - 1)
    real = targets != pad_id
    costs = -(wanted * logits.log_softmax(-1)).sum(-1)
    return costs[real].sum() / max(int(real.sum()), 1), int(real.sum())


@pytest.mark.parametrize(
    ("exercise_id", "function", "name"),
    [
        ("noam_rate", rate_of_lambda_lr, "counts-from-zero"),
        ("noam_rate", rate_with_the_wrong_power, "warmup-exponent"),
        ("label_smoothed_loss", loss_of_torch, "nothing-is-nan"),
        ("shift_targets", shift_with_the_start_sign, "start-sign-in-labels"),
        ("shift_targets", shift_by_roll, None),
        ("accumulate_gradients", accumulate_as_in_many_programs, "mean-of-means"),
        ("accumulate_gradients", accumulate_with_zero_grad_inside, "only-the-last"),
        ("clip_gradients", clip_with_a_loop_over_tensors, "each-tensor-alone"),
        ("clip_gradients", clip_by_value, "clamped-entries"),
        ("bpe_merge", merge_without_counts, "word-counts-ignored"),
        ("bpe_merge", merge_first_seen, "first-seen-wins"),
        ("bucket_batches", bucket_by_sums, "padding-not-counted"),
        ("bucket_batches", bucket_without_the_last, "last-batch-lost"),
        ("resume_state", resume_without_momentum, "momentum-lost"),
        ("label_smoothed_loss", loss_over_the_wrong_tokens, "spread-over-the-others"),
        ("label_smoothed_loss", loss_with_a_share_too_large, "spread-divided-by-one-less"),
    ],
)
def test_a_wrong_answer_gets_its_name_or_none(exercise_id, function, name):
    """None: rejected, and not taken for another misconception."""
    finding = examiner(registry.get(exercise_id)).examine(function)
    assert finding.verdict == WRONG
    assert {misconception.name for misconception in finding.misconceptions} == ({name} if name else set())


@pytest.mark.parametrize(
    ("exercise_id", "function"),
    [
        ("noam_rate", rate_by_logarithms),
        ("label_smoothed_loss", loss_of_selected_rows),
        ("shift_targets", shift_by_filling),
        ("accumulate_gradients", accumulate_by_weighted_means),
        ("clip_gradients", clip_with_foreach),
        ("bpe_merge", merge_with_a_marker),
        ("bucket_batches", bucket_from_a_queue),
    ],
)
def test_an_unusual_right_answer_is_accepted(exercise_id, function):
    assert examiner(registry.get(exercise_id)).examine(function).verdict == RIGHT
