"""Saturation: how time, memory and plan costs grow with graphs and limits."""
