"""Proof of who is who: keys, handshakes, tags on what is said, and the admission of connections."""
