"""Ways between ranks: where they listen, how they are reached, and which of them share memory."""
