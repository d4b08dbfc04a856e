"""Admits user kernels: checks them against their references in a child process, stores verdicts, and keeps the kernels
in use.

In: files of user kernels, which are executed.
Out: admitted kernel templates.
Imports: backends, backends.generate, backends.ir, backends.program.emit, backends.program.helpers, backends.runtime,
    backends.tuning, backends.user, backends.verification, costdb.keys, egraph.evaluate, egraph.ir, egraph.ops,
    egraph.patterns, egraph.types, errors, extract.model, imported, private, wording, writing.
"""
