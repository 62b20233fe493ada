# %% [markdown] id="title"
# # Lab: six wrong factors
#
# **The question: the plan looks right. Which number is wrong by a factor?** A plan is arithmetic, and arithmetic
# raises no error: with one factor missing it looks as good as before. Here are six cases: two plans, a unit, a report,
# an experiment and a line. You see first what went wrong in practice, guess the factor, and then find it. After the
# fifth you mend a plan, and that is a good place to stop.
#
# The lab builds on [chapter 8](../08_scaling.ipynb), its sections 1 to 3 and 6. With two exercises it takes about
# {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import statistics
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import scaling
from course_lib.testing import prove
from course_lib.variants import PUBLISHED, Llama
from coursework import exercises as ex
from coursework.pictures import palette, show
from coursework.pictures.plots import chapter_08, common
from coursework.records import claim
from coursework.records import record as kept

torch.set_num_threads(1)
llama = PUBLISHED["llama-3-8b"].config()

# %% [markdown] id="bench"
# ## The bench
#
# How do you find a missing factor? Not by reading the plan once more. Build a *small* model of the same kind, for
# which everything can be measured, plan it with the same formulas, and divide. A right formula gives 1. A wrong one
# often gives 2, 3 or ½, and the factor itself hints at what is missing. Exhibits 1 and 3 and your own plan are measured
# in this way.
#
# ## Exhibit 1: it dies in the first step
#
# Llama 3 8B is to be trained with AdamW in float32 on a card of 80 GB. “Weights 32 GB, gradients 32 GB, 10 GB of
# activations: it fits.” The model loads. The forward pass runs, and so does the backward pass. Then `optimizer.step()`
# runs out of memory.
#
# **Predict.** What is not in the plan, why does it come so late, and by which factor are the first two numbers
# together too small?

# %% id="held-guess"
ex.predict("dies_in_the_first_step", "")

# %% id="small-model" tags=["hide-input"]
# The small model: a Llama of three layers with 6 heads of queries and 2 of keys and values, 8 wide each
torch.manual_seed(0)
sizes = {"d_model": 48, "n_heads": 6, "n_kv_heads": 2, "vocab_size": 101, "n_decoder_layers": 3}
model = Llama(Llama.configure(**sizes, d_ff=128, max_length=64, tie_embeddings=True))
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(101, (2, 33))


# %% id="held-code"
def held(model, optimizer):
    numbers = list(model.parameters())
    numbers += [p.grad for p in model.parameters() if p.grad is not None]
    numbers += [x for state in optimizer.state.values() for x in state.values()]
    return sum(x.nbytes for x in numbers)


bytes_at = {"loaded": held(model, optimizer)}
F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
bytes_at["after backward"] = held(model, optimizer)
optimizer.step()
bytes_at["after the first step"] = held(model, optimizer)

# %% id="held-figure" tags=["hide-input"]
# Figure: bytes for each parameter that are held at the three moments
n_parameters = sum(p.numel() for p in model.parameters())
each = {when: n / n_parameters for when, n in bytes_at.items()}
show(
    common.bars(
        list(each), list(each.values()), lying=True, size=(6.4, 1.9), numbers="%.0f", colours=palette.query,
        xlabel="bytes for each parameter", xlim=(0, 18),
    ),
    alt="Three bars: four bytes for each parameter when the model is loaded, eight after the backward pass, sixteen after the "
    "first step.",
    caption="A small model, measured. Adam's two averages do not exist before the first step.",
)  # fmt: skip
prove("1: 4, 8 and 16 bytes", [round(n, 1) for n in each.values()] == [4, 8, 16])

# %% [markdown] id="held-says"
# Adam's two averages are missing, eight bytes for each parameter. PyTorch makes them in the first step, so all that
# came before had room. The factor is **2**, and the run needs 128 GB before its activations.
#
# ## Exhibit 2: where did a gigabyte go?
#
# The 8.03 billion weights are stored in bfloat16. The download says 16.1 GB. The program, which has loaded all of them,
# says 15.0 GB. Nothing is missing.
#
# **Predict.** Which of the two numbers is right? How large is the factor for terabytes?

# %% id="units-guess"
ex.predict("where_did_a_gigabyte_go", "")

# %% id="units-code"
n_bytes = 2 * scaling.count_parameters(llama).total()
print(f"{n_bytes / 1e9:.2f} GB, {n_bytes / 2**30:.2f} GiB")
for power, name in enumerate(("kilo", "mega", "giga", "tera"), start=1):
    print(f"{name}: {1024**power / 1000**power:.3f}")

# %% [markdown] id="units-says"
# Both are, but one has the wrong name. A **gigabyte** is 10⁹ bytes, a **gibibyte** (GiB) is 2³⁰, and many programs
# divide by 2³⁰ and print “GB”. The factor is **1.074**, and 1.1 for terabytes: harmless, until a plan with 5 % to
# spare adds numbers of both kinds.
#
# ## Exhibit 3: the empty server
#
# A server sets 80 · 10⁹ bytes aside for Llama 3 8B in bfloat16 and the caches of as many texts of 8,192 tokens as fit.
# The author takes the numbers from the config, layers, `num_attention_heads`, `head_dim`, and gets 14 texts. So more
# servers are bought. In use, each of them shows its memory for caches three quarters empty.
#
# **Predict.** By which factor is the cache too large in the plan, and which entry of the config says so?

# %% id="cache-guess"
ex.predict("the_empty_server", "")

# %% id="cache-code"
free = 80e9 - n_bytes
for name, heads in (("planned", llama.n_heads), ("right", llama.n_kv_heads)):
    config = replace(llama, n_kv_heads=heads)
    a_text = scaling.kv_cache_bytes(config, 1, 8192, dtype=torch.bfloat16)
    print(f"{name}: {a_text / 1e9:.2f} GB for each text, {free // a_text:.0f} texts")

# %% id="cache-measured" tags=["hide-input"]
# Figure: texts that fit. Check: a real cache of the small model has the bytes of its two heads of keys
cache = model.new_cache(32)
with torch.no_grad():
    model(ids[:, :32], cache=cache)
planned = 2 * 3 * 6 * 8 * 32 * 2 * 4  # keys and values, layers, heads, width, tokens, texts, bytes
print(
    f"small model in float32: {planned:,} bytes planned, {cache.n_bytes:,} measured, factor {planned // cache.n_bytes}"
)
prove(
    "3: with the heads of queries the small model's cache is planned three times too large",
    planned == 3 * cache.n_bytes,
)
counts = [
    int(free // scaling.kv_cache_bytes(replace(llama, n_kv_heads=h), 1, 8192, dtype=torch.bfloat16)) for h in (32, 8)
]
show(
    common.bars(["planned", "right"], counts, lying=True, size=(6.4, 1.5), numbers="%d", xlabel="texts that fit",
                colours=(palette.key, palette.value), xlim=(0, 66)),
    alt="Two bars: 14 texts fit by the plan, 59 in truth.",
    caption="The same memory, the same model: four times as many texts as the plan allows.",
)  # fmt: skip
prove("3: 14 texts and 59", counts == [14, 59])

# %% [markdown] id="cache-says"
# The factor is **4**: 32 heads of queries share 8 heads of keys and values, and `num_key_value_heads` says so. In the
# small model 6 share 2, which makes 3. Such a
# mistake lives long. A plan with too little memory crashes. One with too much only costs money.
#
# ## Exhibit 4: 121 per cent
#
# A causal attention alone runs on an A100, whose peak is 312 trillion operations per second. The report says that it
# runs at 121 % of the peak. The number is from a real bug report (NVIDIA/Megatron-LM, issue 831).
#
# **Predict.** Nothing exceeds its peak. Which operations were counted that never happened?

# %% id="mfu-guess"
ex.predict("more_than_the_peak", "")

# %% id="mfu-figure" tags=["hide-input"]
# Figure: the utilisation that is reported for a run at 40 %, against the length of its texts, by two ways of counting
lengths = [2**k for k in range(11, 21)]
ratio = []
for n in lengths:
    every, visible = (
        scaling.count_flops(llama, 1, n, backward=True, halve_causal=half).total() for half in (False, True)
    )
    ratio.append(every / visible)
ways = {
    "all pairs": [40 * r for r in ratio],
    "visible pairs": [40] * len(ratio),
}
show(
    common.curves(
        lengths, ways, xscale="log", ylim=(0, 100), names="upper left", xlabel="tokens in a text",
        ylabel="reported utilisation, %", colours=(palette.key, palette.value), xticks=lengths[::3],
        xticklabels=["2k", "16k", "131k", "1M"],
    ),
    alt="Reported utilisation of a run at 40 per cent against the tokens in a text. With visible pairs counted it is 40 "
    "throughout. With all pairs it rises to 78.",
    caption="All of Llama 3 8B, training at 40 % of the peak, in two reports.",
)  # fmt: skip
found = dict(zip(lengths, ratio, strict=True))
prove("4: 1.13 at 8,192 tokens, 1.7 at 131,072, 1.95 at a million",
      [round(found[n], 2) for n in (8192, 131_072, 2**20)] == [1.13, 1.70, 1.95])  # fmt: skip
prove("4: 189 of 312 is 61 %, twice that is 121 %", [round(100 * n * 189 / 312) for n in (1, 2)] == [61, 121])
prove("4: with the sparse peak as well, a run at 40 % is reported at 39 %", round(40 * found[2**20] / 2) == 39)

# %% [markdown] id="mfu-says"
# The attention really ran at 189 trillion, 61 %. Under a causal mask half of the pairs are hidden, and a Flash kernel
# skips their tiles. A count of all pairs gives 378 trillion. For the attention alone the factor is **2**. A whole model
# also has its maps, which are counted correctly, so for Llama 3 8B the factor grows with the length of the texts: 1.13
# at 8,192 tokens, 1.7 at 131,072.
#
# Counting all pairs is still a common convention (PaLM, appendix B). A number above the peak proves a bug. Below it,
# ask which pairs were counted.
#
# <details><summary>Note: the peak hides a factor of 2 as well</summary>
#
# Data sheets often print the peak for *sparse* matrices, in which half of the numbers are zero. For an H100 it is twice
# the 989 trillion of ordinary ones. That mistake makes a run look worse, the other one makes it look better, and a
# report that has both looks fine: at a million tokens, 39 % for a run at 40 %. So ask also: which peak?
#
# </details>
#
# ## Exhibit 5: stopped early
#
# How many tokens does a small model need for a certain loss? The long run was planned for 20,000 steps, and its rate
# falls along a cosine. The author stops it at step 3,000 and reads its loss every 200 steps, to see how many tokens
# were enough.
#
# **Predict.** A short run of the same model was planned for 2,000 steps, so there its rate is zero. Is its loss at step
# 2,000 lower than that of the long run, higher, or the same? How many steps does the long run need to reach it?

# %% id="early-guess"
ex.predict("stopped_early", "")

# %% id="early-figure" tags=["hide-input"]
# Figure: the loss of the run that was stopped, step by step, and of the one that was finished; means of five seeds
record = claim("cut_short")
FINISHED, STOPPED = record.arms
rate = record.best_rate(STOPPED)
rows = [row for row in record.rows if row["arm"] == STOPPED and row["rate"] == rate]
marks = [int(name.split()[-1]) for name in rows[0] if name.startswith("loss after")]
stopped = [statistics.mean(row[f"loss after {step}"] for row in rows) for step in marks]
finished = statistics.mean(record.values(FINISHED, "loss after 2000"))
after = next(i for i, loss in enumerate(stopped) if loss <= finished)
share = (stopped[after - 1] - finished) / (stopped[after - 1] - stopped[after])
needed = marks[after - 1] + share * (marks[after] - marks[after - 1])
show(
    common.curves(
        marks, {STOPPED: stopped}, levels={f"{FINISHED}: {finished:.2f}": finished}, colours=(palette.key,),
        names="upper right", xlabel="step", ylabel="held-out loss",
    ),
    alt="The held-out loss of the run that was planned for 20,000 steps, from step 2,000 to 3,000. It begins above the dashed "
    "line, the loss of the run that was planned for 2,000, and crosses it later.",
    caption=f"Means of five seeds, each run at its best rate. The long run needs {needed:,.0f} steps for what the short one "
    "reached in 2,000.",
)  # fmt: skip
parameters = record.values(FINISHED, "parameters")[0]
seen = [128 * steps / parameters for steps in (2000, needed)]
print(f"tokens per parameter for a loss of {finished:.2f}: short run {seen[0]:.1f}, long run {seen[1]:.1f}")
pairs = zip(record.values(FINISHED, "loss after 2000"), record.values(STOPPED, "loss after 2000"), strict=True)
prove("5: the finished run has the lower loss, with each of five seeds", all(a < b for a, b in pairs))
prove("5: the stopped one needs about a third more steps", 1.25 < needed / 2000 < 1.42)

# %% [markdown] id="early-says"
# At step 2,000 the short run has the lower loss, with each of the five seeds. While the rate is high, every step shakes
# the weights about. As it falls, they settle, and the loss falls with it. So a loss that is read in the middle of a
# schedule is not what that many tokens can give. Here it looks as if a third more tokens were needed.
#
# Hoffmann et al. (2022, appendix B) saw it in larger models, if a cosine was planned more than a quarter too long. The
# chapter's experiment avoids it: one run keeps its rate constant, and near the end of each budget a copy branches off,
# whose rate falls to zero before it is measured.
#
# <details><summary>Evidence: five seeds, two rates, and how far it reaches</summary>
#
# Two layers of width 32 read characters of plays, 128 a step. The rates 0.006 and 0.012 were tried for both arms, and
# 0.006 was better for both; half of it was worse in two more runs that finished. The held-out loss is taken on 200
# pieces of text, the same for all. In this setting the effect shows. In single runs with four times as many
# characters in each step we saw none. So the factor depends on how noisy the gradients are, and on how far the rate
# still has to fall.
#
# </details>
#
# ## Your turn
#
# Here is a whole plan, in three numbers, compared with the small Llama, which was built and measured. It has 6 heads of
# queries and 2 of keys and values. PyTorch's counter counts the scores of all pairs, so here the plan does, too.

# %% id="plan-ratios" tags=["hide-input"]
# Measure: bytes of training, bytes of the cache, operations of a step; and the given plan divided by them
from coursework.exercises import registry

numbers = {"layers": 3, "heads": 6, "kv_heads": 2, "width": 8, "context": 32, "users": 2, "tokens": 64}
model.bfloat16()
cache = model.new_cache(32)
with torch.no_grad():
    model(ids[:, :32], cache=cache)
model.float()
with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
    model(ids[:, :-1]).sum().backward()
measured = {"training": bytes_at["after the first step"], "cache": cache.n_bytes}
measured["operations"] = counter.get_total_flops()


def compare(plan):
    """Print what a plan says of the small model, over what was measured."""
    planned = plan(N=n_parameters, **numbers)
    for name, value in measured.items():
        print(f"{name:<11}{planned[name]:>12,} planned {value:>12,} measured   factor {planned[name] / value:.2f}")


compare(registry.get("mend_plan").given)
prove("23 step counts of 4 bytes", measured["training"] - 16 * n_parameters == 4 * len(list(model.parameters())) == 92)

# %% [markdown] id="plan-text"
# AdamW also keeps a step count of 4 bytes for each of 23 tensors: the 92 bytes more in the first row.
#
# **Predict.** Which two mistakes give factors of 3 and ⅓?

# %% id="plan-guess"
ex.predict("three_and_a_third", "")

# %% exercise="mend_plan"

# %% id="plan-mended"
compare(plan)
found = plan(596_049_920, 28, 16, 8, 128, context=8192, users=14, tokens=36 * 10**12)
print(f"Qwen3-0.6B: training holds {found['training'] / 1e9:.1f} GB", end=" ")
print(f"and takes {found['operations']:.1e} operations;")
print(f"the cache of 14 texts has {found['cache'] / 1e9:.1f} GB")

# %% [markdown] id="line-text"
# The 36 · 10¹² tokens are those on which Qwen3 was trained.
#
# **A good place to stop. The last exhibit asks for one more function.**
#
# ## Exhibit 6: a line that falls for ever
#
# How large must a model be for a loss of 1.5? Six GPTs, from 19,000 to 717,000 parameters, read the same 1.6
# million characters, with two seeds each. With logarithms on both axes their losses lie near a straight line. The author draws it on, and
# where it reaches 1.5 it says 1.7 million parameters.
#
# **Predict.** Is that too large or too small? By which factor?

# %% id="line-guess"
ex.predict("a_line_that_falls_for_ever", "")

# %% [markdown] id="line-floor"
# A straight line on these axes is a power law, and it promises any loss to a model that is large enough. A real loss
# ends at a floor (section 6.1 of the chapter), so its line must bend. Your function fits a law with a floor, or one
# without if the only floor that you offer is zero. We kept the loss of a larger model from both fits.

# %% exercise="fit_power_law"

# %% id="floor-matters" tags=["hide-input"]
# Figure: your fit with a floor and without, and the model that both had not seen
older = [row for row in kept("sweep")["rows"] if row["tokens"] > 1_500_000]
sizes = sorted({row["parameters"] for row in older})
means = [statistics.mean(row["loss"] for row in older if row["parameters"] == size) for size in sizes]
x, y = (torch.tensor(values, dtype=torch.float64) for values in (sizes, means))
laws = {
    "with a floor": fit_power_law(x[:-1], y[:-1], torch.linspace(0, 0.99, 100, dtype=torch.float64) * y[:-1].min()),
    "without": fit_power_law(x[:-1], y[:-1], torch.zeros(1, dtype=torch.float64)),
}


def size_for(loss, floor, scale, exponent):
    """The parameters at which a law reaches a loss."""
    return ((loss - floor) / scale) ** (-1 / exponent)


print(f"trained: {sizes[-1]:,} parameters, loss {means[-1]:.3f}")
for name, law in laws.items():
    print(f"{name:>12}: floor {law[0]:.2f}; for this loss {size_for(means[-1], *law) / 1e6:.1f} million parameters, "
          f"for 1.4: {size_for(1.4, *law) / 1e6:.1f}")  # fmt: skip
show(
    chapter_08.floors(sizes, means, laws),
    alt="Loss against parameters, both on logarithmic axes. Six points lie near a curve that bends and near a straight line. The "
    "largest model, which neither saw, lies close to the curve and above the line.",
    caption="A law with a floor and one without, fitted to six sizes. The largest model lies nearer to the one with a floor.",
)
prove("6: for 1.5 the line says 1.7 million", round(size_for(1.5, *laws["without"]) / 1e6, 1) == 1.7)
factors = [sizes[-1] / size_for(means[-1], *law) for law in laws.values()]
prove("6: 1.2 times the law with a floor, 1.8 times the line", [round(one, 1) for one in factors] == [1.2, 1.8])

# %% [markdown] id="line-says"
# Too small. A model of 3.2 million reached 1.498, and the line had promised that to 1.7 million. The factor is **1.8**.
# The law with a floor is wrong by 1.2. The further the line is drawn, the more it hides: for a loss of 1.4 the two laws
# differ by a factor of nearly 4.

# %% [markdown] id="answer"
# ## The answer
#
# Which number was wrong by a factor?
#
# | exhibit | symptom | factor | the number |
# |---|---|---|---|
# | 1 | out of memory in the first step | 2 | Adam's averages are not in the bytes of training |
# | 2 | two programs, two sizes | 1.074 | GiB printed as GB |
# | 3 | the memory is never full | heads over key/value heads | the cache, with heads of queries |
# | 4 | more than the peak | up to 2 | hidden pairs were counted |
# | 5 | other runs need fewer tokens | 1.3 here | a loss read before the rate had fallen |
# | 6 | a larger model lies above the line | 1.8 here | the size, from a law without a floor |
# | yours | a small model says 3 and ⅓ | 3 | heads of queries; the forward pass alone |
#
# **You can now** check a plan on a small model: build it, measure, divide, and ask which number makes that factor.
#
# <details><summary>Sources</summary>
#
# Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B (how utilisation is counted). Dao 2023
# (FlashAttention-2), arXiv:2307.08691. NVIDIA/Megatron-LM, issue 831 (121 %). Ainslie et al. 2023 (grouped heads),
# arXiv:2305.13245. Hoffmann et al. 2022, arXiv:2203.15556, appendix B (the length of the cosine). NVIDIA, *H100
# Tensor Core GPU* (data sheet). Yang et al. 2025 (Qwen3, 36 trillion tokens), arXiv:2505.09388.
#
# </details>
