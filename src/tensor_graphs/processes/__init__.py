"""Set-up of worker processes: memory limits, forks, death with the parent; turns of threads.

In: nothing.
Out: limits and guards of processes.
Imports: settings.
"""
