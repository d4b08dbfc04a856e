"""Set-up of worker processes: memory limits, forks, death with the parent; switch interval of Python's threads.

In: nothing.
Out: limits and guards of processes.
Imports: settings.
"""
