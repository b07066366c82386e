"""The embedded world: a small invented encyclopedia and question families over it. No files, no network, no model."""

from gruppo.data.world.demonstrations import gold_reply
from gruppo.data.world.encyclopedia import Article, World, build_world, world_of
from gruppo.data.world.labels import with_labels
from gruppo.data.world.questions import FAMILIES, world_tasks

__all__ = ["FAMILIES", "Article", "World", "build_world", "gold_reply", "with_labels", "world_of", "world_tasks"]
