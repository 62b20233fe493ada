"""The exercise engine: how an answer is run, compared, diagnosed and reported. It works on specifications (`spec`)."""
