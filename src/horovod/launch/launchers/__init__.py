<<<<<<< HEAD
"""Ways of starting processes: one file for each."""
=======
"""Ways of starting processes: one file for each, the fleets they share, and the choice between them."""
>>>>>>> b5da50f5 (Name in each folder's first sentence what is in it)
