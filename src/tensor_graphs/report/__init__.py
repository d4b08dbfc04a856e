"""Report of an optimization, and the timeline of its processes.

In: records of the stages.
Out: JSON, text, one HTML page.
Imports: errors, extract.model, plain.
"""
