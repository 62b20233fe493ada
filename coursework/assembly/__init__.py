"""`course assemble`: the learner's answers become one module, `my_transformer.py`, that needs nothing of this package.

`my_transformer.txt` is the module without its parts; `pick` finds the answers, `extract` cuts what a part needs out of
an answer, `compose` puts the text together, `judge` and `laws` run in processes of their own, `assemble` does it all.
"""
