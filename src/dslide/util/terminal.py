"""The terminal that shows what a process prints."""

TERMINAL = "DSLIDE_TERMINAL"  # environment variable: columns of the terminal to which a launcher passes output, if any
