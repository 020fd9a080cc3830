"""The worker's side of elastic training: state that survives a change of the world, and the loop around."""
