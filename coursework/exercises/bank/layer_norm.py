"""Exercise: layer normalisation from its formula."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def layer_norm(x, weight, bias, eps=1e-5):
    """(B, T, D), (D,), (D,), float -> (B, T, D)"""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)  # (B, T, 1)
    return centred / (variance + eps).sqrt() * weight + bias


def _model(
    over="features", centre="both", count="all", root="inside", scale="weight", shift="bias", size="given", flow="full"
):
    """Layer normalisation whose settings are the misconceptions."""

    def norm(x, weight, bias, eps=1e-5):
        axes = {"features": (-1,), "tokens": (-2,), "sentence": (-2, -1), "batch": (0, 1)}[over]
        eps = {"given": eps, "fixed": 1e-5}[size]
        mean = x.mean(dim=axes, keepdim=True)
        spread = x if centre in ("neither", "numerator") else x - mean
        numbers = x.numel() // mean.numel()
        square = spread.square().sum(dim=axes, keepdim=True) / (numbers if count == "all" else numbers - 1)
        if root == "inside":
            divisor = (square + eps).sqrt()
        elif root == "outside":
            divisor = square.sqrt() + eps
        elif root == "none":
            divisor = square.sqrt()
        else:
            divisor = square + eps
        top = x if centre in ("neither", "denominator") else x - mean
        if flow == "stopped":
            top, divisor = x - mean.detach(), divisor.detach()
        normed = top / divisor
        if scale == "one-plus":
            normed = normed * (1 + weight)
        elif scale == "weight":
            normed = normed * (weight if shift != "inside" else 1)
        if shift == "inside":
            return (normed + bias) * (weight if scale == "weight" else 1)
        return normed + (bias if shift == "bias" else 0)

    return norm


def _with_torch(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def _with_var(x, weight, bias, eps=1e-5):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, weight, (x - mean) * torch.rsqrt(variance + eps))


def _token_by_token(x, weight, bias, eps=1e-5):
    rows = []
    for token in x.flatten(0, 1):  # (B T, D)
        mean = token.sum() / len(token)
        variance = ((token - mean) ** 2).sum() / len(token)
        rows.append(weight * (token - mean) / torch.sqrt(variance + eps) + bias)
    return torch.stack(rows).reshape(x.shape)


@maker
def _case(B, T, D, seed, dtype=torch.float32, scale=1.0, shift=0.0, eps=1e-5):
    x = normal(B, T, D, seed=seed, dtype=torch.float64, scale=scale, grad=False) + shift
    weight, bias = normal(D, seed=seed + 1, dtype=dtype), normal(D, seed=seed + 2, dtype=dtype)
    return x.to(dtype).requires_grad_(), weight, bias, eps


def _constant():
    # Without a gradient, which std() defines to be zero here and a square root does not.
    return torch.full((1, 2, 5), 0.75), normal(5, seed=52), normal(5, seed=53), 1e-5


def _strided():
    return strided(normal(2, 3, 5, seed=61)), normal(5, seed=62), normal(5, seed=63), 1e-5


def _sample(draw):
    B, T, D = draw.integer(1, 3), draw.integer(1, 5), draw.integer(2, 8)
    scale, eps = draw.choice([1.0, 0.01, 30.0]), draw.choice([1e-5, 1e-3, 0.1])
    return draw.normal(B, T, D, dtype=torch.float64, scale=scale), *(
        draw.normal(D, dtype=torch.float64) for _ in range(2)
    ), eps  # fmt: skip


def _tokens_are_apart(norm) -> str | None:
    x, *rest = _case(2, 3, 5, seed=81)()
    changed = x.detach().clone()
    changed[0, 2] += 3.0 * torch.arange(5)
    moved = (norm(x, *rest) - norm(changed, *rest)).abs().amax(dim=-1) > 1e-5  # (B, T)
    moved[0, 2] = False
    if moved.any():
        b, t = moved.nonzero()[0].tolist()
        return f"Changing token 2 of sentence 0 changed the output at position {t} of sentence {b}."
    return None


def _mean_and_spread(norm) -> str | None:
    x = _case(1, 2, 5, seed=91, shift=3.0)()[0].detach()
    found = norm(x, torch.ones(5), torch.zeros(5), 1e-5)[0, 0]
    mean, variance = float(found.mean()), float(found.var(correction=0))
    if abs(mean) > 1e-3 or abs(variance - 1) > 1e-2:
        return f"With weights of one and biases of zero, a token has mean {mean:.3f} and variance {variance:.3f}."
    return None


EXERCISE = Exercise(
    title="Layer normalisation",
    what="""Write `layer_norm(x, weight, bias, eps=1e-5)` from its formula. For each token by itself: subtract the mean
of its D components; divide by √(variance + eps), where the variance is the mean of the squared differences from the
mean; multiply each component by its `weight` and add its `bias`.""",
    why="Every layer has two. Divide by D - 1, or add eps outside the root, and yours differs from PyTorch's.",
    difficulty=2,
    minutes=8,
    reference=layer_norm,
    model=_model,
    misconceptions=misconceptions("""
unbiased-variance (count="one-less"): divides the sum of squares by D - 1, as torch's `std` and `var` do unless told
        otherwise
    For a token of width 2, by which number do you divide the sum of two squares?
eps-outside-the-root (root="outside"): adds eps to the standard deviation, outside the root
    For a variance of zero, what does your function divide by, and what does the formula?
eps-forgotten (root="none"): does not use eps
    What happens to a token whose components are all the same?
eps-fixed (size="fixed"): takes 1e-5 for eps, whatever is given
    What does your function do with its fourth argument?
divides-by-the-variance (root="squared"): divides by the variance, without the root
    If all components double, what should happen to the output?
rms (centre="neither"): never subtracts the mean, as RMSNorm does
    What is the mean of your output before weight and bias?
mean-left-in-the-numerator (centre="denominator"): subtracts the mean for the variance only
    What is the mean of your output before weight and bias?
mean-left-in-the-variance (centre="numerator"): takes the mean of the squares for the variance, without subtracting the
        mean first
    If a constant is added to all components of a token, what should happen to the output?
over-the-tokens (over="tokens"): averages over the tokens of a sentence, one component at a time
    Which axis holds the D components of one token?
over-the-sentence (over="sentence"): averages over all tokens of a sentence together
    May the output at one position depend on another token?
over-the-batch (over="batch"): averages over the batch, as batch normalisation does
    May the output of a sentence depend on the other sentences of its batch?
no-weight (scale="none"): does not use the weight
    Which of your arguments have you used?
one-plus-weight (scale="one-plus"): multiplies by one plus the weight
    With which weight would your function leave the normed vector alone?
no-bias (shift="none"): does not use the bias
    Which of your arguments have you used?
bias-before-weight (shift="inside"): adds the bias before it multiplies by the weight
    For a token whose components are all the same, what is your output?
statistics-without-gradient (flow="stopped"): lets no gradient through the mean and the variance
    Does a component of x change the mean and the variance of its token?
"""),
    cases=[
        Case("1 token of width 3", _case(1, 1, 3, seed=1)),
        Case("1 sentence of 2 tokens, width 5", _case(1, 2, 5, seed=11)),
        Case("2 sentences of 3 tokens, width 5, mean far from zero", _case(2, 3, 5, seed=21, shift=2.0)),
        Case("a token whose components are all the same", _constant),
        Case("components of about 0.01", _case(2, 3, 7, seed=31, scale=0.01)),
        Case("eps of 0.5", _case(2, 3, 7, seed=41, eps=0.5)),
        Case("components of about 0.01, eps not given", lambda: _case(1, 2, 3, seed=51, scale=0.01)()[:3]),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, 3, 5, seed=71, dtype=torch.float64)),
    ],
    properties=[
        Property("Each token is normalised by itself.", _tokens_are_apart),
        Property("A normed token has mean zero and variance one.", _mean_and_spread),
    ],
    alternatives=[
        Alternative("torch's own", _with_torch),
        Alternative("with var_mean", _with_var),
        Alternative("token by token", _token_by_token),
    ],
    hints=(
        "Of which numbers is the mean taken: how many means are there for a batch of shape (B, T, D)?",
        "Centre first, then use the centred components twice: for the variance and as what is divided. Keep the axis.",
        """centred = x - x.mean(dim=-1, keepdim=True)
variance = ____  # (B, T, 1)
return centred / (variance + eps).sqrt() * weight + bias""",
    ),
    sample=_sample,
    tries=("float32", "large", "shifted", "zeros", "repeated"),
)
