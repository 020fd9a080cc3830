"""Compatibility names: ``HorovodBasics``, process sets, errors, elastic state, ``util``."""
