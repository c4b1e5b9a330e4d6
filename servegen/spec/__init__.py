"""The spec language: ``schema`` says what may be written, ``load`` reads it and answers for every line.

text --tree--> nodes with line and column --presets, not_yet--> dict --schema--> ServingSpec --explain--> diagnostics
"""
