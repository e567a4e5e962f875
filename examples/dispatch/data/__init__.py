"""Loaders of the public data sets that the dispatch example runs on; the files themselves are never shipped.

Each loader is one file and knows one format. Read folder.py first.
"""
