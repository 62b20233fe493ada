"""The learner's desk: a folder with copies of the notebooks, the answers with their history, and the progress."""
