"""Synthetic tasks whose best possible loss is known.

All are drawn from a `torch.Generator`: the same seed gives the same examples on every machine. Tensors are made on the
device of the generator, the CPU unless one is given.
"""

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from course_lib.checks import check_choice, check_integer

Split = Literal["train", "test"]

HELD_OUT = 5  # of the pairs that can be asked for, one in so many is kept for the test split


class Recall(NamedTuple):
    """Examples of associative recall: in each, which value stood beside the key that is asked for?

    keys (N, P) and query (N,) are ids from 0 to n_keys - 1; values (N, P) and target (N,) from 0 to n_values - 1.
    tokens (N, 2P + 1) is the same as one sequence, key value key value ... query, where value v is token n_keys + v.
    """

    keys: Tensor
    values: Tensor
    query: Tensor
    target: Tensor
    tokens: Tensor


def associative_recall(
    n_examples: int,
    *,
    n_pairs: int,
    n_keys: int,
    n_values: int,
    split: Split = "train",
    generator: torch.Generator | None = None,
) -> Recall:
    """Draw examples of associative recall: `n_pairs` keys, all different, each with a value, and one key asked for.

    Only looking up the key tells the answer: the best loss is 0, and without the look-up it is about ln n_pairs
    (naming one of the values present), or ln n_values (guessing blindly). The two splits never ask for the same pair
    of key and value: an answer in "test" was never the answer to that key in "train". All answers are equally frequent
    if n_keys is a multiple of 5.

    Raises ValueError for sizes that do not fit: n_pairs from 1 to n_keys, n_values of at least 5.
    """
    check_integer("n_examples", n_examples, 0)
    check_integer("n_keys", n_keys, 1)
    check_integer("n_values", n_values, HELD_OUT)
    check_integer("n_pairs", n_pairs, 1)
    if n_pairs > n_keys:
        raise ValueError(f"n_pairs: expected at most n_keys={n_keys}, since keys are all different, got {n_pairs}")
    check_choice("split", split, get_args(Split))
    device = _device(generator)
    order = torch.rand(n_examples, n_keys, generator=generator, device=device).argsort(dim=1, stable=True)
    keys = order[:, :n_pairs]  # (N, n_keys) -> (N, P), without repetition
    values = torch.randint(n_values, (n_examples, n_pairs), generator=generator, device=device)
    asked = torch.randint(n_pairs, (n_examples, 1), generator=generator, device=device)
    query = keys.gather(1, asked)  # (N, 1)
    target = _allowed_value(query, n_values, split, generator)
    values = values.scatter(1, asked, target)
    pairs = torch.stack([keys, n_keys + values], dim=2)  # (N, P, 2)
    tokens = torch.cat([pairs.flatten(1), query], dim=1)  # (N, P, 2) -> (N, 2P), then (N, 2P + 1)
    return Recall(keys, values, query[:, 0], target[:, 0], tokens)


def _allowed_value(query: Tensor, n_values: int, split: Split, generator: torch.Generator | None) -> Tensor:
    """For each key, a value whose pair with that key belongs to the split, each equally often: (N, 1) -> (N, 1)."""
    pairs = query + torch.arange(n_values, device=query.device)  # (N, n_values)
    allowed = (pairs % HELD_OUT == 0) == (split == "test")
    first = (~allowed).int().argsort(dim=1, stable=True)  # the allowed values of each row stand first
    drawn = torch.rand(query.shape, generator=generator, device=query.device) * allowed.sum(1, keepdim=True)
    return first.gather(1, drawn.long())


class Facts(NamedTuple):
    """Texts in which facts change: at each position somebody enters a room, or is asked for.

    names (N, T) from 0 to n_names - 1; rooms (N, T) from 0 to n_rooms - 1, and n_rooms at a question; targets (N, T),
    at a question the room that this name entered last, elsewhere -100, which `cross_entropy` leaves out.
    """

    names: Tensor
    rooms: Tensor
    targets: Tensor


def changing_facts(
    n_examples: int,
    length: int,
    *,
    n_names: int,
    n_rooms: int,
    asked: float = 0.3,
    generator: torch.Generator | None = None,
) -> Facts:
    """Draw texts in which each name may change its room; a share `asked` of the positions, about, are questions.

    Nobody is asked for before the first statement. To answer, a model must prefer the latest statement to older ones.
    """
    check_integer("n_examples", n_examples, 0)
    check_integer("length", length, 1)
    check_integer("n_names", n_names, 1)
    check_integer("n_rooms", n_rooms, 1)
    device, size = _device(generator), (n_examples, length)
    names = torch.randint(n_names, size, generator=generator, device=device)
    rooms = torch.randint(n_rooms, size, generator=generator, device=device)
    wanted = torch.rand(size, generator=generator, device=device) < asked
    earlier = torch.ones(length, length, dtype=torch.bool, device=device).tril(-1)
    same = (names[:, :, None] == names[:, None]) & earlier  # (N, T, T): of the same name, and before
    questions = wanted & same.any(-1)
    told = same & ~questions[:, None]  # never empty at a question: the first mention of a name is a statement
    latest = torch.where(told, torch.arange(length, device=device), -1).amax(-1)  # (N, T)
    targets = torch.where(questions, rooms.gather(1, latest.clamp(min=0)), -100)
    return Facts(names, torch.where(questions, n_rooms, rooms), targets)


def noise_tokens(n_examples: int, length: int, vocab_size: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw sequences in which no token says anything about another: ids (N, T), each id equally likely.

    No model can predict the next token with a loss below `noise_floor(vocab_size)`. One that does has seen it: its
    mask leaks. This finds a leak without reading a line of the model's code.
    """
    check_integer("n_examples", n_examples, 0)
    check_integer("length", length, 1)
    check_integer("vocab_size", vocab_size, 2)
    return torch.randint(vocab_size, (n_examples, length), generator=generator, device=_device(generator))


def noise_floor(vocab_size: int) -> float:
    """Return the entropy of one token of `noise_tokens`, ln V nats: the lowest loss that does not cheat."""
    check_integer("vocab_size", vocab_size, 2)
    return math.log(vocab_size)


def copy_task(
    n_examples: int,
    length: int,
    vocab_size: int,
    *,
    reverse: bool = False,
    first_id: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw sequences to be written out again, or backwards: source (N, T) and target (N, T).

    Ids run from `first_id`, so that lower ones are free for padding and markers, to vocab_size - 1. The best loss is
    0; a model that sees nothing of the source stays at ln(vocab_size - first_id).
    """
    check_integer("n_examples", n_examples, 0)
    check_integer("length", length, 1)
    check_integer("first_id", first_id, 0)
    check_integer("vocab_size", vocab_size, first_id + 2)
    size = (n_examples, length)
    source = torch.randint(first_id, vocab_size, size, generator=generator, device=_device(generator))
    return source, source.flip(1) if reverse else source.clone()


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device
