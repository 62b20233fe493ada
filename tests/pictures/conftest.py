"""Each test starts without figures of another."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def no_figures_of_other_tests():
    """Close what any earlier test left open, also one of another folder in the same process."""
    plt.close("all")
