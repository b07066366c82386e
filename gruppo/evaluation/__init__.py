"""Evaluation: play a team on held-out tasks, count, compare, and say how sure we are. It never trains anything."""
