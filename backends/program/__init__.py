"""Programs: memory plan, source emission for CPU and GPU, argument marshalling, weights, manifest, runtime.

In: a plan.
Out: a callable program.
Imports: backends, backends.ir, backends.library, backends.runtime, backends.user, backends.verification,
    costdb.keys, egraph.ir, errors, extract.model, imported, plain, private, processes, wording, writing.
"""
