"""Pipelines: SFT, then GRPO, evaluated around each, in steps that go on where they were; `play.py` is the whole."""
