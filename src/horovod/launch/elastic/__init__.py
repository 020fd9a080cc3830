"""Elastic jobs: hosts come and go, and ranks with them.

``discovery`` asks which hosts there are, ``hosts`` keeps their order and who is left out, ``policy`` decides
(a state machine without clocks, sockets or threads), and ``job`` connects it with processes and the store.
"""
