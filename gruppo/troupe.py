"""The troupe: what is collected is played in several processes, each a share of the tasks with tools of its own.

Small models leave much to Python: rendering, parsing, tools, drawing. Processes that play whole episodes share all of
it, where processes that only sample share the sampling. Rewards are computed where everything is collected. What is
played does not depend on who plays it: the shares are the same where nothing can be forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gruppo.replicas import Replicas
from gruppo.rollout import Called, Handed, Rollout, played
from gruppo.teams.base import Role
from gruppo.types import Tool

Roles = Mapping[str, Mapping[str, Role]]  # by label, by name
Tools = Mapping[str, Tool]


class Troupe:
    """Plays the roles of rollouts in the processes of `replicas`; all else is as in `rollout`, which knows no troupe.

    `renew` gives a forked process tools in place of those it inherits, which `close` ends when it does.
    """

    def __init__(
        self,
        rollout: Rollout,
        replicas: Replicas,
        renew: Callable[[Tools], Tools],
        close: Callable[[Iterable[Tool]], None],
    ) -> None:
        self.rollout, self.replicas = rollout, replicas
        self._renew, self._close = renew, close
        self._tools, self._home = rollout.tools, os.getpid()
        self._leading: Mapping[str, Rollout] = {}
        replicas.add(self, self._leave)

    def __call__(
        self, rollouts: Mapping[str, Rollout], tasks: Sequence[Called], attempts: int, seed: int
    ) -> list[Handed]:
        """As `rollout.played`, in the order of labels and tasks; with the roles and listeners of `rollouts` alone."""
        roles: Roles = {label: rollout.roles for label, rollout in rollouts.items()}
        num = min(self.replicas.free, len(tasks))
        shares = [(number, roles, tasks[number::num], attempts, seed) for number in range(num)]
        self._leading = rollouts
        own, *others = self.replicas.map(Troupe.play, self, shares)
        for label, group, _ in (handed for share in others for handed in share):
            for episode in group.episodes:
                rollouts[label].on_episode(episode)
        each = [iter(share) for share in (own, *others)]
        return [next(each[place % num]) for _ in rollouts for place in range(len(tasks))]

    def play(self, number: int, roles: Roles, tasks: Sequence[Called], attempts: int, seed: int) -> list[Handed]:
        """Share `number`. Those who listen to episodes hear of the first's as they end, of the others' afterwards."""
        rollouts = {label: replace(self.rollout, roles=own, tools=self._own_tools()) for label, own in roles.items()}
        if number == 0:
            rollouts = {
                label: replace(own, on_episode=self._leading[label].on_episode) for label, own in rollouts.items()
            }
        return list(played(rollouts, tasks, attempts, seed))

    def _own_tools(self) -> Tools:
        if os.getpid() != self._home:
            self._tools, self._home = self._renew(self._tools), os.getpid()
        return self._tools

    def _leave(self) -> None:
        """A replica ends."""
        if self._tools is not self.rollout.tools:
            self._close(self._tools.values())
