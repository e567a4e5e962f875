"""Dispatch rounds: a seeded city, and rounds made of the public data sets, both as shards ready to be sent.

Read rounds.py first (what a round is), then generate.py and prune.py (the city) and real.py (the data sets).
"""
