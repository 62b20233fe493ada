"""The model that the reader writes: answers become one module, `my_transformer.py`, that needs torch alone.

`my_transformer.txt` is the module without its parts; `parts` says which exercises they are, `extract` cuts what a part
needs out of an answer, `compose` puts the text together, `judge` and `laws` run in processes of their own, `assemble`
does it all for `course assemble`, and `thread` for the end of a chapter.
"""
