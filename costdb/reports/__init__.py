"""Small result records that can be shown as JSON, text and HTML.

In: numbers.
Out: tables.
Imports: nothing.
"""
