# %% [markdown] id="title"
# # Lab: what does an optimizer keep in mind?
#
# **The question: plain descent looks at one gradient and forgets it. What is worth remembering, and at what price?** You
# write the steps of momentum, of Adam and of Muon, each a few lines, and the rate of the paper of 2017. At the end you
# know what each of them keeps for every weight of a model, and why two schedules with the same warm-up may end far apart.
#
# The lab stands on [chapter 6](../06_training.ipynb), which explains momentum and Adam in its section 7 and the warm-up
# in section 8. It has four exercises and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out the same in every run
import math

import torch
from torch import nn

from course_lib import training
from course_lib.testing import prove
from course_lib.training import TrainingConfig, noam_schedule
from coursework import exercises as ex
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="momentum"
# ## 1 One number for each weight: momentum
#
# Here is the narrow valley of the chapter once more, flat along one weight and steep across it. Plain descent has one
# rate for both and creeps. Momentum lets the gradients that agree add up, and those that alternate cancel.

# %% id="valley-drawn" tags=["hide-input"]
# Drawing: the same valley with plain descent, momentum and Adam
drawings.narrow_valley().show()

# %% [markdown] id="momentum-says"
# With the velocity $v$, the share $\beta$ that it keeps, the gradient $g$ and the rate $\eta$:
#
# $$v \leftarrow \beta \, v + g \qquad\qquad w \leftarrow w - \eta \, v$$
#
# **By hand**, with $\beta = 0.9$: the gradients 1, 1 and 1 give the velocities 1, 1.9 and 2.71. The gradients 1, −1 and 1
# give 1, −0.1 and 0.91.

# %% exercise="momentum_step"

# %% id="momentum-run"
w, velocity = torch.tensor([-9.0, 1.0]), torch.zeros(2)
for _ in range(60):
    gradient = torch.tensor([1.0, 50.0]) * w  # of (x² + 50 y²)/2
    w, velocity = momentum_step(w, gradient, velocity, 0.02, 0.9)
print(f"after 60 steps: x = {w[0]:.3f}, y = {w[1]:.3f}")

# %% [markdown] id="adam"
# ## 2 Two numbers for each weight: Adam
#
# Momentum still has one rate for all weights. Adam also remembers how large the gradients of each weight usually are, and
# divides by that. So it keeps a second average, of the squares. Both averages start at 0 and are much too small at first,
# which the division by $1 - \beta^t$ repairs:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad
# w \leftarrow w - \eta \, \frac{\hat m}{\sqrt{\hat v} + \varepsilon}$$

# %% id="adam-drawn" tags=["hide-input"]
# Drawing: the first step of one weight
drawings.adam_of_one_weight().show()

# %% exercise="adam_step"

# %% id="adam-run"
w, m, v = torch.tensor([1.0, 1.0]), torch.zeros(2), torch.zeros(2)
w, m, v = adam_step(w, torch.tensor([4.0, -0.0004]), m, v, 1, 0.1)
print("a steep weight and a flat one, after the first step:", w.tolist())
prove("both moved by the rate", torch.allclose(w, torch.tensor([0.9, 1.1])))

# %% [markdown] id="adam-says"
# In its first step Adam moves every weight by the rate, whatever the gradient is. In chapter 6 you turn this into AdamW
# by one more line.
#
# ## 3 One number for each weight, and a look at the whole matrix: Muon

# %% [markdown] id="optimizer-muon"
# **What goes wrong.** Adam looks at each weight by itself. But the weights of a matrix work together: it turns
# directions of the input into directions of the output, some strongly and some weakly. The strengths are its
# **singular values**. In the updates of Transformers Jordan et al. (2024) found a few large ones among many tiny ones.
# Such an update learns next to nothing in most directions.
#
# **The idea** of their **Muon**: keep the directions of the update, and make all its strengths about equal. If $X$ has
# a singular value $s$, then $X X^\top X$ has $s^3$ in the same directions. So a sum of such products applies a
# polynomial to each singular value:
#
# $$X \leftarrow a X + b\, X X^\top X + c\, X X^\top X X^\top X
# \qquad\text{turns each } s \text{ into}\qquad a s + b s^3 + c s^5$$
#
# **By hand**, with Muon's $a = 3.4445$, $b = -4.775$, $c = 2.0315$: 0.1 becomes 0.34, then 0.99, then 0.71. A small
# value more than triples in each step, until it moves between about 0.7 and 1.2. This is a *Newton–Schulz iteration*.
#
# <details><summary>Why X Xᵀ X has the cubes, and how to begin</summary>
#
# The plainest case is a matrix with 0.5 and 0.1 on its diagonal and zeros elsewhere. These are its singular values, and
# $X X^\top X$ has their cubes there, 0.125 and 0.001. Any other matrix is such a diagonal one between two rotations,
# $X = U S V^\top$, and in $X X^\top X = U S^3 V^\top$ the inner ones cancel.
#
# The singular values must be at most 1 to begin with. So the matrix is first divided by the root of the sum of all its
# squares. One could also compute the singular values and replace them by 1. On a GPU that is slow, and products of
# matrices are fast.
#
# </details>

# %% id="optimizer-muon-drawn" tags=["hide-input"]
# Drawing: singular values before and after
drawings.singular_values_of_an_update().show()

# %% exercise="newton_schulz"

# %% id="optimizer-muon-check"
torch.manual_seed(0)
strengths = torch.logspace(0, -2, 48)  # strong directions and weak ones
update = torch.randn(32, 48) @ torch.diag(strengths)
even = newton_schulz(update)
before, after = torch.linalg.svdvals(update / update.norm()), torch.linalg.svdvals(even)
print(f"singular values before: {before.min():.3f} to {before.max():.3f}")
print(f"singular values after:  {after.min():.3f} to {after.max():.3f}")
course = training.newton_schulz(update, dtype=torch.float32)
prove("your function does what Muon does", torch.allclose(even, course, atol=1e-3))

# %% id="optimizer-polynomial" tags=["hide-input"]
# Check: the polynomial by hand, and the memory
s, seen = 0.1, []
for _ in range(3):
    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    seen.append(round(s, 2))
prove("0.1 becomes 0.34, 0.99 and 0.71", seen == [0.34, 0.99, 0.71])
X = torch.diag(torch.tensor([0.5, 0.1]))
prove("X Xᵀ X has the cubes of 0.5 and 0.1", torch.allclose(X @ X.T @ X, torch.diag(torch.tensor([0.125, 0.001]))))
prove("Muon with AdamW for 39 of 124 million weights keeps 0.65 GB", round((85 * 4 + 39 * 8) / 1000, 2) == 0.65)

# %% [markdown] id="optimizer-muon-whole"
# The rest of Muon is momentum: average the gradients, make the average even, and move the matrix by the rate times the
# result. Embeddings, the last map to the words, norms and biases stay with AdamW. For GPT-2, AdamW alone would keep
# 1.0 GB of averages; this way it is 0.65 GB.
#
# <details><summary>Muon in full, and the memory of each optimizer</summary>
#
# Before Newton–Schulz, this step's gradient is mixed into the average once more. This is *Nesterov* momentum, as if one
# looked a step ahead. The Muon of the course does two more things. It lets the weights decay as AdamW does, and it fits
# the length of the step to the shape (R, C) of the matrix, by the factor $\sqrt{\max(1, R/C)}$. Decay and a length that
# fits the shape are what let Muon grow to large language models (Liu et al. 2025, with another factor).
#
# Besides weight and gradient, an optimizer keeps numbers of its own, in float32 four bytes each. GPT-2 has 85 million
# weights in the matrices inside the layers and 39 million elsewhere, nearly all in the embeddings.
#
# | optimizer | kept for each weight | bytes | for 124 million weights |
# |---|---|---|---|
# | plain descent | nothing | 0 | 0 |
# | momentum | one average | 4 | 0.5 GB |
# | Muon, with AdamW for the rest | one average, two for the rest | 4, 8 | 0.65 GB |
# | Adam, AdamW | two averages | 8 | 1.0 GB |
#
# </details>

# %% [markdown] id="noam"
# ## 4 The rate of the paper
#
# The schedule of the paper of 2017 is named *Noam*, after one of its authors. It rises in a line for the steps of the
# warm-up, and then falls with one over the root of the step. It does not need to know where the run ends. With the step
# $t$, the width $d_{model}$ and $t_{warm}$ steps of warm-up:
#
# $$\eta(t) = d_{model}^{-0.5} \cdot \min\left(t^{-0.5},\; t \cdot t_{warm}^{-1.5}\right)$$
#
# The two terms meet at $t = t_{warm}$. **By hand**, for the paper's width of 512 and 4000 steps of warm-up, the peak
# is $1/\sqrt{512 \cdot 4000} \approx 0.0007$. At step 16,000, four times as far, half of it is left.

# %% id="schedules-drawn" tags=["hide-input"]
# Drawing: four schedules, Noam among them
drawings.learning_rate_shapes().show()

# %% exercise="noam_rate"

# %% id="noam-check"
rates = [noam_rate(step, 512, 4000) for step in range(1, 20_001)]
for step in (1, 4000, 16_000):
    print(f"step {step:6}: {rates[step - 1]:.2e}")
prove("the peak stands at the end of the warm-up", 1 + rates.index(max(rates)) == 4000)
prove("at step 16,000 half of it is left", math.isclose(rates[15_999], max(rates) / 2))

# %% id="noam-course" tags=["hide-input"]
# Check: the course's schedule is yours
paper = TrainingConfig(steps=100_000, schedule="noam", warmup=4000, learning_rate=(512 * 4000) ** -0.5)
prove("its rates are yours", all(math.isclose(paper.rate(t), noam_rate(t, 512, 4000)) for t in (1, 4000, 99_999)))
prove("the library's schedule is the same", math.isclose(noam_schedule(37, 512, 4000), noam_rate(37, 512, 4000)))

# %% [markdown] id="early-decay"
# There is a trap in it. In Noam's schedule a short warm-up also brings the decay forward. If the result
# is bad, was it the short warm-up, or the **early decay**? At two peaks the answers differ:
#
# <details><summary>Evidence: what was trained</summary>
#
# Seven letters are written backwards by two layers on each side, in 250 steps, with five seeds. With Noam's schedule
# and 5 steps of warm-up, step 250 has only a seventh of the peak. The linear schedules fall to zero at the end of the
# run.
#
# </details>

# %% id="early-decay-record" tags=["hide-input"]
# Record: the same short warm-up with an early and with a late decay
lengths = claim("warm_up_length")
shown = ("Noam, 5 steps", "linear, 5 steps", "linear, 60 steps")
said = {
    peak: "; ".join("{}: {:.2f} to {:.2f}".format(arm, *lengths.range(arm, "right letters", peak)) for arm in shown)
    for peak in lengths.rates
}
show(
    common.rows_by_rate(lengths, "right letters", shown, rate="peak", size=(7.4, 2.2)),
    alt="Right letters, a dot for each of five seeds. "
    + " ".join(f"Peak {peak:g}. {text}." for peak, text in said.items()),
    caption="At the low peak, most of what looks like the harm of a short warm-up is the early decay. At the high peak the "
    f"short warm-up itself does harm, and the early decay repairs most of it. ({lengths.command})",
)
low, high = lengths.rates
prove("at the low peak the same warm-up does better with the later decay, in every seed",
      lengths.range("Noam, 5 steps", "right letters", low)[1]
      < lengths.range("linear, 5 steps", "right letters", low)[0])  # fmt: skip
means = {arm: sum(lengths.values(arm, "right letters", high)) / 5 for arm in shown}
lost, repaired = means["linear, 60 steps"] - means["linear, 5 steps"], means["Noam, 5 steps"] - means["linear, 5 steps"]
prove("at the high peak the short warm-up is worse than the long one, in every seed",
      lengths.range("linear, 5 steps", "right letters", high)[1]
      < lengths.range("linear, 60 steps", "right letters", high)[0])  # fmt: skip
prove("there the early decay gives back more than half of the loss, on average", repaired > lost / 2)

# %% [markdown] id="answer"
# ## The answer
#
# What does an optimizer keep in mind?
#
# | optimizer | what it remembers | what this mends |
# |---|---|---|
# | plain descent | nothing | |
# | momentum | an average of the gradients | jumping across, creeping along |
# | Adam, AdamW | also an average of their squares | one rate for steep and flat weights |
# | Muon | an average, made even as a matrix | updates that learn only a few directions |
#
# The schedule remembers one number for the whole model, the step. Two schedules with the same warm-up may still differ in
# when they fall.
#
# **Sources.** Kingma, Ba 2015 (Adam), arXiv:1412.6980. Jordan et al. 2024, *Muon: An optimizer for hidden layers in
# neural networks*. Liu et al. 2025, *Muon is Scalable for LLM Training*, arXiv:2502.16982. Vaswani et al. 2017,
# arXiv:1706.03762, section 5.3.
