"""Rewrite rules: random rules, equations between small terms, derivations, with the files of rules that they read."""
