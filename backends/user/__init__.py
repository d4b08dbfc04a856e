"""User kernels: declarations (`tg.kernel`), their references as patterns, and their templates.

In: Python files of the user, which are executed.
Out: kernel templates.
Imports: backends.ir, egraph.builders, egraph.ir, egraph.ops, egraph.patterns, egraph.types, errors, extract.model,
    plain.
"""
