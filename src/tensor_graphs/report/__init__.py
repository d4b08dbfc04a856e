"""Reports on an optimization and the timeline of its processes.

In: records of the stages.
Out: JSON, text, one HTML page.
Imports: costdb.price, costdb.reports, costdb.store, errors, extract.model, plain, wording.
"""
