"""A node: takes requests, runs each on an executor, answers, and outlives its executors.

`config` says how a node is set up, `repository` which models it offers, `node` is the loop that all requests pass,
`admission` and `dedupe` decide about them, `sentinel` about the executors, `executor` is the child that runs models.
Nothing here chooses among nodes: that is the router's. Read `config`, then `node`.
"""
