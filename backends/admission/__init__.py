"""Admission of user kernels: checks against their references in a child process, verdicts, and the kernels in use.

In: files of user kernels, which are executed.
Out: admitted kernel templates.
Imports: backends.
"""
