"""The replay buffer: an episode store in SQLite, and retrieval of similar transitions from it."""
