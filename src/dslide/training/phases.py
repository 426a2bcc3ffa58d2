"""The phases of training that a profile tells apart."""

READING = "reading the batch"
HIDDEN_FORWARD = "hidden layers, forward"
HITS = "hashing, hash hits"
ACTIVE = "active sets"
LINKS = "links"
FIRST_PASS = "output, first pass"
SECOND_PASS = "output, second pass"
HIDDEN_BACKWARD = "hidden layers, backward"
RENEWING = "renewing hash tables"
PACKING = "packing for other ranks"  # numbers into messages and out of them
WAITING = "waiting for other ranks"
REST = "the rest"  # Python, progress, saving
ALL = (
    READING, HIDDEN_FORWARD, HITS, ACTIVE, LINKS, FIRST_PASS, SECOND_PASS, HIDDEN_BACKWARD, RENEWING, PACKING, WAITING,
    REST,
)  # fmt: skip
