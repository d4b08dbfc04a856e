"""Small result records with JSON, text and HTML forms.

In: numbers.
Out: tables.
Imports: nothing.
"""
