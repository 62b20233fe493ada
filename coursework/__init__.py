"""All around the library: exercises and their checks, pictures, explorers, the learner's desk, the command `course`.

What is taught, and what a practitioner imports, is `course_lib`, which imports nothing of this package.
"""
