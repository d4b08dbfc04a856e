"""User kernels: declarations (`tg.kernel`), their references as patterns, and their templates.

In: Python files of the user, which are executed.
Out: kernel templates.
Imports: backends.ir, egraph.ir, errors, extract.model, plain.
"""
