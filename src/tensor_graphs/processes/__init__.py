"""Set-up of worker processes: memory limits, forks, death with the parent.

In: nothing.
Out: limits and guards of processes.
Imports: backends.runtime, backends.tuning, backends.verification, egraph.ir, extract.model, settings.
"""
