"""Question: which parameters of a mixture of experts work on one token."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Count the parameters that get a gradient from a single token."""
    import torch

    from course_lib.variants.experts import MixtureOfExperts

    moe = MixtureOfExperts(96, 256, n_experts=8, top_k=2, activation="silu", gated=True, bias=False)
    moe(torch.randn(1, 96, generator=torch.Generator().manual_seed(0))).sum().backward()
    return sum(
        p.numel() for p in moe.parameters() if p.grad is not None and (p is moe.router.weight or p.grad.abs().sum() > 0)
    )


EXERCISE = Question(
    title="Stored and active",
    what="""A mixture of 8 experts stands in for the feed-forward at width 96. Each expert is a SwiGLU of inner width
256 without biases; the router is one linear map without a bias, and a token uses the 2 experts with the highest scores.
How many of the layer's parameters take part in the computation of one token, the router included?""",
    why="""Memory holds all experts, but the operations for a token depend only on the active ones: two numbers that
are quoted as if they were one.""",
    difficulty=2,
    minutes=4,
    right=148_224,
    formula="""
width = 96
inner_width = 256
experts = 8
experts_used = 2
matrices = 3
expert = matrices * width * inner_width
router = width * experts
experts_used * expert + router
""",
    compute=_compute,
    form="a number of parameters",
    wrong=[
        WrongAnswer(590_592, "the number stored, not the active one", "How many experts does one token meet?"),
        WrongAnswer(147_456, "the two experts without the router", "What decides which two they are?"),
        WrongAnswer(74_496, "one expert and the router", "How many experts does a token use?"),
        WrongAnswer(99_072, "the count for experts of two matrices each", "How many matrices has a SwiGLU?"),
        WrongAnswer(73_728, "one expert without the router", "How many experts does a token use?"),
        WrongAnswer(147_648, "the count with two rows of the router", "How many scores are computed before two win?"),
        WrongAnswer(589_824, "all experts without the router", "How many experts does one token meet?"),
    ],
    hints=(
        "Which matrices does the vector of one token meet on its way through the layer?",
        "A SwiGLU has three matrices, two of them widening and one narrowing; the router has one score an expert.",
        "expert = ____ * 96 * 256\nactive = 2 * expert + 8 * 96",
    ),
    explanation="""An expert has 3 · 96 · 256 = 73,728 parameters. Two of them and the router's 768 are 148,224, a
quarter of the 590,592 that are stored. The router scores all eight experts for every token, so all of it is active.""",
)
