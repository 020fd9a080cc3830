"""The store where ranks meet: server, clients, the messages between them, and what ranks keep there."""
