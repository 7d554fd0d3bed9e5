"""Job spec → directives → script text.

Pure: no clock, no environment, no files, no processes, no printing. Facts and template texts come in as arguments.
"""
