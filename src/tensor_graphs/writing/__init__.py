"""Writes output files and folders atomically and durably.

In: paths and content.
Out: complete files and folders: at every moment the complete old or the complete new version exists.
Imports: errors, wording.
"""
