"""A proof that stands in the ledger is not made again, and what is counted again must be what the ledger says."""

import ledger
import pytest


def _proved(item):
    if item.get_closest_marker("proof") is None:
        return None, None
    exercise = item.callspec.params["exercise"]
    return exercise, ledger.proved(exercise.id)


def pytest_runtest_setup(item):
    exercise, counts = _proved(item)
    if counts is not None and not ledger.made_again(exercise.id):
        item.user_properties.append(("ledger", [exercise.id, counts]))
        pytest.skip("proved before, and nothing has changed since: tests/exercises/ledger.txt")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        done = yield
    except RuntimeError as error:  # the limit of an answer met a finalizer, and cut off pytest's report of it
        if type(error.__cause__).__name__ != "_Stop" or error.__context__ is not None:  # then the proof failed, too
            raise
        done = None
    _, counts = _proved(item)
    for name, value in item.user_properties:
        if counts is not None and name == "exercise":
            for key in counts.keys() & value[1].keys():
                assert value[1][key] == counts[key], (
                    f"{key}: {value[1][key]}, in tests/exercises/ledger.txt {counts[key]}"
                )
    return done
