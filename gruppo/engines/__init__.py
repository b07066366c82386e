"""Engines: messages in, sampled ids and log-probs out. Siblings that do not know one another."""
