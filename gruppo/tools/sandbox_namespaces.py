"""A world of its own for the python tool: namespaces with a root folder that holds a Python and nothing else.

Imported by `python_zygote.py`, which runs outside the package: the standard library only. The same for root, who first
becomes nobody, and for a user who may make user namespaces. Two storeys: the zygote's (no files of ours, no network, no
processes of ours, no /proc), and in it one for each supervisor (its processes, its /tmp), which the code can't leave.
"""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import struct
import sys

from sandbox_walls import LIBC, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PRCTL, SYSCALL, become, check

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE, DETACH = 1, 2, 4, 32, 4096, 16384, 1 << 18, 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
SYSTEM = ("/bin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/nix/store")
WORK = "/tmp"


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    texts = [text and text.encode() for text in (source, target, kind)]
    check(LIBC.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def freeze(target: str, flags: int) -> None:
    """Add flags to a mount and all below it: never takes any away, which the kernel would not let us."""
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    check(SYSCALL(442, -100, target.encode(), 0x8000, attributes, ctypes.c_size_t(32)), f"mount_setattr {target}")


def library() -> list[str]:
    """What the code may read: the interpreter, its standard library and the system's shared libraries."""
    shared = glob.glob(os.path.join(sys.base_exec_prefix, "lib", "libpython*"))
    own = [os.path.realpath(sys.executable), *sys.path, *shared]
    return [path for path in dict.fromkeys([*SYSTEM, *own]) if os.path.exists(path)]


def foreign(paths: list[str]) -> list[str]:
    """Folders of third-party packages below those: ours may be among them."""
    kinds = ("site-packages", "dist-packages", "python3*/site-packages", "python3*/dist-packages")
    found = [folder for path in paths for kind in kinds for folder in glob.glob(f"{path}/{kind}")]
    return [folder for folder in found if not os.path.islink(folder)]


def without_packages(path: str) -> list[str]:
    """`path`, or the entries of which it consists but for third-party packages. Links are what they lead to."""
    if os.path.basename(path) in ("site-packages", "dist-packages"):
        return []
    if not foreign([path]):
        return [path]
    inner = [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
    return [shown for entry in inner for shown in without_packages(entry)]


def build_root(base: str, paths: list[str]) -> None:
    """Make an empty root at `base`, show `paths` in it read-only, and move there for good."""
    mount("none", "/", None, RECURSIVE | PRIVATE)
    mount("tmpfs", base, "tmpfs", NO_SUID | NO_DEVICES, "mode=755,size=1m")
    done: list[str] = []
    for path in sorted([*paths, *DEVICES], key=len):  # a folder before what lies in it
        target = base + path
        if os.path.lexists(target):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT))
        mount(path, target, None, BIND | RECURSIVE)
        freeze(target, READ_ONLY | NO_SUID | (0 if path in DEVICES else NO_DEVICES))
        done.append(path)
    for folder in foreign(done):
        mount("tmpfs", base + folder, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "mode=755,size=4k")
    os.mkdir(base + WORK)
    os.symlink(WORK, base + "/dev/shm")
    mount("none", base, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(base)
    check(SYSCALL(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check(LIBC.umount2(b".", DETACH), "umount the old root")
    os.chdir("/")


def new_user_namespace(proc: int, others: int) -> None:
    """Leave for a user namespace of our own, with `others`; we keep our numbers, and hold every capability in there."""
    user, group = os.getuid(), os.getgid()
    check(PRCTL(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # or the files below are not ours to write
    check(LIBC.unshare(NEWUSER | others), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc), "w") as file:
            file.write(text)
    check(PRCTL(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable")


def enter(base: str, user: int | None) -> int:
    """Go on, in a child, as the first process of the zygote's world; the caller waits for it and never returns.

    As root we become `user` first: kernel settings below /proc and much else are root's in any namespace. Who is not
    root gives none. Returns a descriptor of the /proc we came from. Raises OSError naming the step that this machine
    refuses.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    world = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP
    paths = library()
    if user is not None:
        check(LIBC.unshare(NEWNS), "unshare")
        build_root(base, paths)
        become(user)
        new_user_namespace(proc, world)
    else:
        new_user_namespace(proc, world)
        build_root(base, paths)
    if first := os.fork():
        os.closerange(3, 1 << 16)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return proc


def fork_into_own(proc: int) -> int:
    """As os.fork, the child being the first process of a world of its own within the zygote's."""
    check(LIBC.unshare(NEWPID), "unshare")
    child = os.fork()
    if child:  # take the next child into a new one too, which the kernel grants only to who is at home
        home = os.pidfd_open(os.getpid())
        check(LIBC.setns(home, NEWPID), "setns")
        os.close(home)
    else:
        new_user_namespace(proc, NEWNS | NEWIPC)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a first process without handlers can't be signalled from within
    return child


def mount_work(num_bytes: int, num_files: int) -> None:
    """A fresh, empty /tmp of bounded size."""
    mount("tmpfs", WORK, "tmpfs", NO_SUID | NO_DEVICES, f"mode=700,size={num_bytes},nr_inodes={num_files}")


def unmount_work() -> None:
    """Remove it with all that is in it."""
    check(LIBC.umount2(WORK.encode(), DETACH), "umount")
