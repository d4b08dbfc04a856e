"""Admission of user kernels: checks against their references in a child process, verdicts, and the kernels in use.

In: files of user kernels, which are executed.
Out: admitted kernel templates.
Imports: backends, backends.generate, backends.ir, backends.program, backends.runtime, backends.tuning, backends.user,
    backends.verification, costdb.keys, egraph.ir, errors, extract.model, private, writing.
"""
