"""Where code runs: the world that a zygote enters once, and in it the seat of a supervisor with its folder and walls.

Imported by `python_zygote.py`, which runs outside the package: the standard library only.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import sandbox_namespaces as namespaces
import sandbox_walls as walls
from sandbox_census import MAX_FILES, empty, resident, size_of


class World:
    """What the zygote hands to its supervisors: descriptors of /proc, of what may be read, of the memory group."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Enter it. Raises OSError naming the step that this machine refuses."""
        self.group = None
        if settings["group"]:
            self.group = os.open(settings["group"], os.O_RDONLY | os.O_DIRECTORY)
            with open(f"{settings['group']}/zygote/cgroup.procs", "w") as members:
                members.write("0")
        if settings["level"] == "namespaces":
            self.proc = namespaces.enter(settings["base"], settings["user"])
            self.readable: list[int] = []
            self.folders: list[int] = []
            return
        if settings["level"] == "landlock" and not walls.landlock_version():
            raise OSError(walls.ENOSYS, "this kernel has no Landlock")
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        self.readable, self.folders = open_library()


def open_library() -> tuple[list[int], list[int]]:
    """Open what the code may read: files and folders with all that is in them, and folders of modules.

    The standard library's own path may be closed to the code (a Python in the home of root), so from here on it is
    imported through the open folders.
    """
    folders = {path: os.open(path, os.O_PATH) for path in sys.path if os.path.isdir(path)}
    readable = {os.path.realpath(path) for path in [*namespaces.library(), *namespaces.DEVICES]}
    sys.path[:] = [f"/proc/self/fd/{folder}" for folder in folders.values()]
    for module in list(sys.modules.values()):
        for path in vars(module).get("__path__", ()):
            library = os.path.dirname(path)
            if library in folders:
                vars(module)["__path__"] = [f"/proc/self/fd/{folders[library]}/{os.path.basename(path)}"]
    shown = [inner for path in readable for inner in namespaces.without_packages(path)]
    return [os.open(path, os.O_PATH) for path in shown], list(folders.values())


class Seat:
    """What a supervisor has for its calls: the folder the code works in, its user, its walls, its memory group."""

    def __init__(self, settings: dict[str, Any], slot: int, world: World) -> None:
        self.settings, self.proc, self.folders = settings, world.proc, world.folders
        self.is_apart = settings["level"] == "namespaces"
        self.user = settings["user"] + slot if os.getuid() == 0 else None
        self.disk = settings["disk_mb"] << 20
        self.work = namespaces.WORK if self.is_apart else f"{settings['base']}/{slot}"
        self.ruleset = self.program = None
        if not self.is_apart:
            os.makedirs(self.work, 0o700, exist_ok=True)
            empty(self.work)
            if self.user is not None:
                os.chown(self.work, self.user, self.user)
        if settings["level"] == "landlock":
            self.ruleset = walls.landlock_ruleset(world.readable, world.folders, os.open(self.work, os.O_PATH))
        if settings["level"] != "process":
            signals, attributes = self.is_apart or walls.landlock_version() >= 6, self.is_apart or self.user is not None
            self.program = walls.seccomp_program(settings["processes"], signals, attributes)
        self.members = self.events = -1
        if world.group is not None:
            self.members, self.events = open_group(world.group, str(slot), settings["memory_mb"] << 20)

    def open(self) -> None:
        """An empty work folder."""
        if self.is_apart:
            namespaces.mount_work(self.disk, MAX_FILES)

    def clear(self) -> None:
        """Nothing of the call is left."""
        if self.is_apart:
            namespaces.unmount_work()
            return
        try:
            empty(self.work)
        except OSError:  # what is left goes when the tool is closed
            pass

    def excess(self) -> str:
        """Which total is passed, "memory" or "disk", of those that the kernel does not hold down by itself."""
        if self.members < 0 and resident(self.proc) > self.settings["memory_mb"] << 20:
            return "memory"
        return "disk" if not self.is_apart and size_of(self.work, self.disk) > self.disk else ""

    def num_killed(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        if self.events < 0:
            return 0
        told = os.pread(self.events, 4096, 0).split()
        return int(told[told.index(b"oom_kill") + 1]) if b"oom_kill" in told else 0


def open_group(parent: int, name: str, num_bytes: int) -> tuple[int, int]:
    """A memory group of our own in the folder `parent`: descriptors of its members and of its events."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:  # of the slot's last one; a listing could miss it: `parent` is shared, with its position
        pass
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    files = os.listdir(folder)
    for file in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max"):  # v1, v2
        if file in files:
            with open(os.open(file, os.O_WRONLY, dir_fd=folder), "w") as limit:
                limit.write("0" if "swap.max" in file else str(num_bytes))
    events = "memory.events" if "memory.events" in files else "memory.oom_control"
    return os.open("cgroup.procs", os.O_WRONLY, dir_fd=folder), os.open(events, os.O_RDONLY, dir_fd=folder)
