"""Compatibility names: ``RendezvousServer``, for launchers of one's own."""
