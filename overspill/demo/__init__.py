"""The demo: one dispatch round over three nodes, with an executor and a node killed on the way.

It is the product used as a customer would use it: real node processes, the public `Router`, the models of
`examples/dispatch`. Read `show` first: it tells the whole story in order.
"""
