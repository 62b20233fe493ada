"""The shared checks of arguments: what they let pass, and the sentence and the error of what they refuse."""

import re
from functools import partial

import numpy as np
import pytest
import torch

from course_lib import checks


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.check_integer, 1),
        (partial(checks.check_integer, least=0), 0),
        (checks.check_number, -2.5),
        (partial(checks.check_number, above=0), np.int64(3)),
        (checks.check_probability, np.float32(0.5)),
        (partial(checks.check_number, least=0), 0),
        (partial(checks.check_number, above=0), 1e-9),
        (partial(checks.check_number, or_none=True), None),
        (checks.check_probability, 0),
        (partial(checks.check_probability, interval="(0, 1]"), 1.0),
        (partial(checks.check_probability, interval="[0, 1]"), 1),
        (partial(checks.check_choice, choices=("pre", "post")), "pre"),
        (checks.check_floating, torch.zeros(2, dtype=torch.bfloat16)),
        (checks.check_integers, torch.zeros(2, dtype=torch.uint8)),
        (checks.check_mask, torch.zeros(2, dtype=torch.bool)),
    ],
)
def test_what_passes(check, value):
    check("x", value)


@pytest.mark.parametrize(
    ("check", "value", "error", "message"),
    [
        (checks.check_integer, 0, ValueError, "x: expected an integer of at least 1, got 0"),
        (checks.check_integer, True, TypeError, "x: expected an integer of at least 1, got True"),
        (checks.check_integer, 2.0, TypeError, "x: expected an integer of at least 1, got 2.0"),
        (checks.check_number, "1", TypeError, "x: expected a finite number, got '1'"),
        (checks.check_number, float("nan"), ValueError, "x: expected a finite number, got nan"),
        (checks.check_number, float("-inf"), ValueError, "x: expected a finite number, got -inf"),
        (partial(checks.check_number, least=0), -1, ValueError, "x: expected a number of at least 0, got -1"),
        (partial(checks.check_number, above=0), 0.0, ValueError, "x: expected a positive number, got 0.0"),
        (partial(checks.check_number, above=1), float("nan"), ValueError, "x: expected a number above 1, got nan"),
        (checks.check_probability, 1.0, ValueError, "x: expected a probability in [0, 1), got 1.0"),
        (checks.check_probability, False, TypeError, "x: expected a probability in [0, 1), got False"),
        (checks.check_probability, float("nan"), ValueError, "x: expected a probability in [0, 1), got nan"),
        (partial(checks.check_probability, interval="(0, 1]"), 0, ValueError, "x: expected a probability in (0, 1]"),
        (partial(checks.check_choice, choices=("a", "b")), "c", ValueError, "x: expected one of a, b, got 'c'"),
        (checks.check_floating, torch.arange(2), TypeError, "x: expected a tensor of floating-point numbers, got "),
        (checks.check_integers, torch.zeros(2), TypeError, "x: expected a tensor of integers, got torch.float32"),
        (
            checks.check_token_ids,
            torch.zeros(2, dtype=torch.uint8),
            TypeError,
            "token ids, int64 or int32, got torch.uint8",
        ),
        (checks.check_flag, "no", TypeError, "x: expected True or False, got 'no'"),
        (checks.check_flag, 1, TypeError, "x: expected True or False, got 1"),
        (partial(checks.check_integers, what="integer token ids"), [1], TypeError, "integer token ids, got list"),
        (checks.check_mask, torch.zeros(2), TypeError, "x: expected a boolean mask (True = may attend), got torch.flo"),
    ],
)
def test_what_is_refused(check, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check("x", value)


def test_symbols_pass_through_compile():
    def double(x):
        checks.check_integer("T", x.size(0), least=0)
        checks.check_floating("x", x)
        return 2 * x

    compiled = torch.compile(double, dynamic=True, fullgraph=True, backend="eager")
    for length in (3, 4, 7):
        torch.testing.assert_close(compiled(torch.ones(length)), torch.full((length,), 2.0))
