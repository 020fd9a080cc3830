"""What the ranks print, and what the launcher tells the user."""
