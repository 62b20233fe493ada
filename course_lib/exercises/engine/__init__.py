"""The exercise engine: what an exercise is (`spec`), how an answer is run, compared, diagnosed and reported."""
