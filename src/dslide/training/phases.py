"""The phases of training that a profile tells apart."""

READING = "reading the batch"
HIDDEN_FORWARD = "hidden layers, forward"
HASH_LOOKUP = "hash look-up"
ACTIVE = "active sets"
LABEL_PRIOR = "label prior"
FIRST_PASS = "output, first pass"
SECOND_PASS = "output, second pass"
HIDDEN_BACKWARD = "hidden layers, backward"
REBUILDING = "rebuilding hash tables"
PACKING = "packing for other ranks"  # numbers into messages and out of them
WAITING = "waiting for other ranks"
REST = "the rest"  # Python, progress, saving
ALL = (
    READING, HIDDEN_FORWARD, HASH_LOOKUP, ACTIVE, LABEL_PRIOR, FIRST_PASS, SECOND_PASS, HIDDEN_BACKWARD, REBUILDING,
    PACKING, WAITING, REST,
)  # fmt: skip
