"""Answers to chapter 04 as learners write them, independent of the models; see `test_answers.py`."""

import torch
import torch.nn.functional as F
from torch import nn


def two_linear_maps(x, W_up, b_up, W_down, b_down):
    return torch.matmul(torch.matmul(x, W_up) + b_up, W_down) + b_down


def network_of_bert(x, W_up, b_up, W_down, b_down):
    return F.gelu(x @ W_up + b_up) @ W_down + b_down


def network_with_einsum(x, W_up, b_up, W_down, b_down):
    inner = torch.maximum(torch.einsum("btd,df->btf", x, W_up) + b_up, torch.zeros(()).to(x))
    return torch.einsum("btf,fd->btd", inner, W_down) + b_down


def annotated_norm(x, weight, bias, eps=1e-5):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() + bias


def norm_with_eps_on_the_std(x, weight, bias, eps=1e-5):
    std = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) ** 0.5
    return weight * (x - x.mean(-1, keepdim=True)) / (std + eps) + bias


def norm_by_std(x, weight, bias, eps=1e-5):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + eps) + bias


def norm_by_moments(x, weight, bias, eps=1e-5):
    first = x.double().mean(-1, keepdim=True)
    second = x.double().square().mean(-1, keepdim=True)
    return (weight * (x - first) * torch.rsqrt(second - first**2 + eps) + bias).to(x.dtype)


def norm_of_the_branch(x, attention, feed_forward, first_norm, second_norm, pre=False):
    if pre:
        x = x + attention(first_norm(x))
        return x + feed_forward(second_norm(x))
    x = x + first_norm(attention(x))
    return x + second_norm(feed_forward(x))


def one_norm_for_both(x, attention, feed_forward, first_norm, second_norm, pre=False):
    norm = first_norm
    if pre:
        h = x + attention(norm(x))
        return h + feed_forward(norm(h))
    h = norm(x + attention(x))
    return norm(h + feed_forward(h))


def layer_with_modules(x, attention, feed_forward, first_norm, second_norm, pre=False):
    class Around(nn.Module):
        def __init__(self, function, norm):
            super().__init__()
            self.function, self.norm = function, norm

        def forward(self, x):
            return x + self.function(self.norm(x)) if pre else self.norm(self.function(x) + x)

    return nn.Sequential(Around(attention, first_norm), Around(feed_forward, second_norm))(x)


def similarity_with_the_diagonal(x):
    return F.cosine_similarity(x.unsqueeze(1), x.unsqueeze(2), dim=-1).mean((1, 2))


def similarity_by_triangle(x):
    unit = F.normalize(x, dim=-1)
    row, column = torch.triu_indices(x.size(1), x.size(1), offset=1)
    return (unit[:, row] * unit[:, column]).sum(-1).mean(-1)


def masked_mean_over_everything(x, real):
    return torch.where(real[..., None], x, 0.0).sum(1) / x.shape[1]


def masked_mean_with_nan(x, real):
    return x.masked_fill(~real[..., None], torch.nan).nanmean(dim=1)


def weights_only(d_model, d_ff, n_layers):
    return n_layers * (4 * d_model**2 + 4 * d_model + 2 * d_model * d_ff + 4 * d_model)


def three_maps(d_model, d_ff, n_layers):
    return n_layers * (3 * (d_model**2 + d_model) + 2 * d_model * d_ff + d_ff + d_model + 4 * d_model)


def counted_with_linear_layers(d_model, d_ff, n_layers):
    def linear(rows, columns):
        return rows * columns + columns

    return n_layers * (4 * linear(d_model, d_model) + linear(d_model, d_ff) + linear(d_ff, d_model) + 4 * d_model)


WRONG_ANSWERS = [
    ("feed_forward", two_linear_maps, "no-nonlinearity"),
    ("feed_forward", network_of_bert, "gelu"),
    ("layer_norm", annotated_norm, "unbiased-variance"),
    ("layer_norm", norm_with_eps_on_the_std, "eps-outside-the-root"),
    ("layer_norm", norm_by_std, "eps-outside-the-root"),
    ("encoder_layer", norm_of_the_branch, "post-norm-of-the-branch"),
    ("encoder_layer", one_norm_for_both, "shared-norm"),
    ("token_similarity", similarity_with_the_diagonal, "each-with-itself"),
    ("sentence_vector", masked_mean_over_everything, "padding-counted"),
    ("encoder_parameters", weights_only, "feed-forward-without-biases"),
    ("encoder_parameters", three_maps, "attention-without-output"),
]

RIGHT_ANSWERS = [
    ("feed_forward", network_with_einsum),
    ("layer_norm", norm_by_moments),
    ("encoder_layer", layer_with_modules),
    ("token_similarity", similarity_by_triangle),
    ("sentence_vector", masked_mean_with_nan),
    ("encoder_parameters", counted_with_linear_layers),
]
