"""Names that scripts import from here."""
