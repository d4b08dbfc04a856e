"""Holds the helper code of emitted programs, as text and as modules from which the text is taken.

In: names of helpers that a program needs.
Out: source text.
Imports: backends, backends.ir, backends.user, private.
"""
