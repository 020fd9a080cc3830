"""Compatibility names: ``ElasticDriver``, host discovery and notifications, for launchers of one's own."""
