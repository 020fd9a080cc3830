"""Names of the elastic launcher that scripts import from here."""
