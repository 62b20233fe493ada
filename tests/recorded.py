"""A pass with the attention weights that it formed."""

from course_lib.attention import record_weights


def recorded(module, *inputs, run=None, **options):
    """What `module`, or its method `run`, returns for the inputs, then the weights of each attention inside."""
    with record_weights(module) as maps:
        output = (run or module)(*inputs, **options)
    return output, *maps.values()
