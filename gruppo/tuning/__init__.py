"""Tuning: a study plays ordinary runs with other settings and compares them; `study.py` reads as the whole of it."""
