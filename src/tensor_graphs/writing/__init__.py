"""Atomic, durable writing of output files and folders.

In: paths and content.
Out: complete files and folders: at every moment the complete old or the complete new version exists.
Imports: errors.
"""
