"""`dslide serve`: predictions of a trained network over HTTP.

options.py        what can be set, checked
requests.py       what clients send, checked
batching.py       requests that wait together are predicted together
served_model.py   the model, and newer checkpoints in its place
metrics.py        counts of all workers, in shared memory
app.py            routes and answers
connections.py    limits on slow clients
workers.py        processes: start, watch, stop
page.html         a page to try it
"""
