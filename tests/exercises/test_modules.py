"""Exercises in which a class is written: how it is built and called, and what is said of one that is wrong."""

import ast
import inspect

import pytest
import torch
import torch.nn.functional as F
from notebook_files import SOURCES
from proofs import run_cell
from torch import nn

from coursework.exercises import given, modules, registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, WRONG, diagnose
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.source import definition, same_code
from coursework.exercises.modules import Unfit

LAYER = registry.get("layer")
X, TABLE = torch.ones(2, 3), nn.Embedding(4, 3)


def written(body, exercise=LAYER):
    """The class of an exercise as a notebook's cell defines it, with these lines in the place of the stub."""
    stub = cells.stub(exercise)
    indent = " " * 8
    lines = "\n".join(indent + line for line in body.split("\n"))
    source = stub.replace(f"{indent}{cells.STUB}", lines)
    assert source != stub
    return run_cell(source, exercise)[0][exercise.function_name]


def said(body):
    candidate = written(body)
    finding = diagnose(LAYER, candidate)
    assert finding.verdict == WRONG
    return message(LAYER, finding, candidate, keep=False)


FIRST = "x = x + self.dropout(self.attention(self.first_norm(x), mask))\n"
KEPT = "self.kept = getattr(self, 'kept', mask)\n"
MADE = "mask = mask & torch.ones(x.size(1), dtype=torch.bool)\n"
SECOND = "return x + self.dropout(self.feed_forward(self.second_norm(x)))"


def test_a_class_of_a_notebook_is_judged_and_its_text_is_found():
    right = written(FIRST + SECOND)
    assert diagnose(LAYER, right).verdict == RIGHT
    text, tree = definition(right)
    assert text.startswith("class Layer(nn.Module):")
    assert tree.name == "Layer"
    assert same_code(right, written(FIRST + SECOND))
    assert not same_code(right, written(FIRST + SECOND.replace("+", "-")))
    assert diagnose(LAYER, written("raise NotImplementedError")).verdict == NOT_ATTEMPTED


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FIRST + SECOND.replace("x +", "x -"), "One operation is another than it should be: `x - self.dropout"),
        (FIRST + SECOND.replace("second_norm", "first_norm"), "Your class behaves exactly like one that uses"),
        (FIRST + FIRST + SECOND, "One statement is too many: `x = x + self.dropout("),
        (FIRST.replace(")\n", ") / 2\n") + SECOND, "One term or factor is too many: `2`"),
        (FIRST + SECOND.removeprefix("return "), "It returns nothing (None). Is the return missing?"),
        (KEPT + FIRST.replace("mask", "self.kept") + SECOND, "It keeps something: after"),
        (MADE + FIRST + SECOND, "makes a tensor on the default device"),
        (FIRST.replace("))\n", ")).detach()\n") + SECOND, "no gradient reaches `attention.query.weight`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_forward_is_named_or_its_place_is(body, words):
    assert words in said(body)


def test_what_is_no_class_is_not_called():
    text = message(LAYER, diagnose(LAYER, lambda x, mask: x), None, keep=False)
    assert "check expects a class; it got a function." in text


class Scale(nn.Module):
    def __init__(self, width, extra=0):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        if extra:
            self.bias = nn.Parameter(torch.ones(extra))

    def forward(self, x):
        return x * self.weight


def test_other_weights_than_declared_are_said():
    weight = {"weight": torch.ones(3)}
    assert torch.equal(modules.call(Scale, {"width": 3}, weight, X), X)
    for sizes, state, words in (
        ({"width": 3}, {"scale": torch.ones(3)}, "lacks the weight 'scale'; its own are weight"),
        ({"width": 3, "extra": 2}, weight, "a weight too many, 'bias'"),
        ({"width": 4}, weight, r"'weight' is \(4,\); \(3,\) is expected"),
    ):
        with pytest.raises(Unfit, match=words):
            modules.call(Scale, sizes, state, X)


def elsewhere(function):
    """The function as a module's forward, with inputs that do not lie on the default device."""
    forward = {"forward": lambda self, x: function(x)}
    return modules.call(type("Tried", (nn.Module,), forward), {}, {}, X, elsewhere=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(3),
        lambda x: TABLE(torch.arange(3)),
        lambda x: x.masked_fill(torch.ones(2, 3, dtype=torch.bool).tril(), 0),
        lambda x: torch.cat([x, torch.zeros(1, 3)]),
        lambda x: F.linear(x, torch.eye(3).to(torch.float32)),
    ],
)
def test_a_tensor_on_the_default_device_cannot_be_mixed_with_the_inputs(function):
    with pytest.raises(Unfit, match="default device"):
        elsewhere(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(3, device=x.device),
        lambda x: x + torch.arange(3).to(x.device),
        lambda x: x + torch.ones(3).to(x),
        lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
        lambda x: x[torch.arange(2)],
        lambda x: x + torch.zeros_like(x) + x.new_zeros(3),
        lambda x: x + (torch.arange(3) + torch.ones(3)).to(x.device),
        lambda x: F.dropout(x, 0.5),
    ],
)
def test_what_works_between_a_gpu_and_the_cpu_is_accepted(function):
    assert elsewhere(function).shape == X.shape


def bare(tree):
    """A class without docstrings and types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        for name in ("returns", "annotation"):
            if hasattr(node, name):
                setattr(node, name, None)
    return ast.dump(tree)


def test_the_parts_that_a_chapter_shows_are_those_that_the_checks_use():
    chapter = next(path for path in SOURCES if path.stem == "04_encoder").read_text(encoding="utf-8")
    shown = {node.name: bare(node) for node in ast.walk(ast.parse(chapter)) if isinstance(node, ast.ClassDef)}
    for name, one in vars(given).items():
        # What is not shown comes from the reader's own file.
        if inspect.isclass(one) and one.__module__ == given.__name__ and name in shown:
            assert shown[name] == bare(ast.parse(inspect.getsource(one)).body[0]), name
