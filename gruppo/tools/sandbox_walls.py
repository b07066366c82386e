"""Walls that a process puts up around itself with a few system calls: seccomp, Landlock, limits, no capabilities.

Imported by `python_zygote.py`, which runs outside the package: the standard library only. Where the walls are not
enough because they only forbid, `sandbox_namespaces.py` takes the outside world away.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import stat
import struct
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PRCTL, SYSCALL = LIBC.prctl, LIBC.syscall
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
EPERM, ENOSYS = 1, 38
SELF = 0x7FFFFFFE

# Refused system calls, (x86_64, aarch64); -1: the architecture has none.
REFUSED = {
    "socket": (41, 198), "connect": (42, 203), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "fanotify_init": (300, 262),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1),
    "uselib": (134, -1), "migrate_pages": (256, 238), "move_pages": (279, 239), "lookup_dcookie": (212, 18),
    "inotify_add_watch": (254, 27), "truncate": (76, 45),
}  # fmt: skip
# What Landlock leaves open: a path is enough to change these of any file that the same user owns.
ATTRIBUTES = {
    "chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "lchown": (94, -1),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
}  # fmt: skip
FORK = {"fork": (57, -1), "vfork": (58, -1)}
CLONE, CLONE3, CLONE_THREAD, NEW_NAMESPACES = (56, 220), (435, 435), 0x10000, 0x7E020000
KILL, TGKILL, PRLIMIT64, SOCKETPAIR, IOCTL = (62, 129), (234, 131), (302, 261), (53, 199), (16, 29)
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into a terminal
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def check(result: int, what: str) -> int:
    """`result`, or OSError(errno, what failed) if it is negative."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def seccomp_program(processes: int, signals: bool, attributes: bool) -> bytes:
    """The BPF filter: refused calls, and a few that hang on the value of an argument. SELF stands for the process.

    `signals`, `attributes`: another wall keeps signals, and changes to the attributes of files, inside, so that the
    code may send them to its own children, and make them to its own files.
    Raises OSError on a machine whose call numbers are not known here.
    """
    if platform.machine() not in MACHINES:
        raise OSError(ENOSYS, f"seccomp: no filter for {platform.machine()}, only for {', '.join(MACHINES)}")
    column, audit = MACHINES[platform.machine()]
    refused = {**REFUSED, **(FORK if processes < 2 else {}), **({} if attributes else ATTRIBUTES)}
    fork = (CLONE_THREAD, [CLONE_THREAD]) if processes < 2 else (NEW_NAMESPACES, [0])
    load, jump_equal, jump_less, mask_with, give = 0x20, 0x15, 0x35, 0x54, 0x06
    allow, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | EPERM)
    only_if: list[
        tuple[Any, ...]
    ] = [  # (call, argument, mask, values): a socket pair has no datagrams, which could go to named sockets
        (PRLIMIT64, 0, 0xFFFFFFFF, [0], allow, refuse),
        (SOCKETPAIR, 1, 0xF, [socket.SOCK_STREAM], allow, refuse),
        (CLONE, 0, *fork, allow, refuse),
        (IOCTL, 1, 0xFFFFFFFF, [TIOCSTI, TIOCLINUX], refuse, allow),
    ]
    if not signals:
        only_if += [(KILL, 0, 0xFFFFFFFF, [SELF], allow, refuse), (TGKILL, 0, 0xFFFFFFFF, [SELF], allow, refuse)]
    program = [(load, 0, 0, 4), (jump_equal, 1, 0, audit), refuse, (load, 0, 0, 0)]
    if column == 0:
        program += [(jump_less, 0, 1, 0x40000000), refuse]  # the x32 numbers
    program += [(jump_equal, 0, 1, CLONE3[column]), (give, 0, 0, 0x00050000 | ENOSYS)]  # the C library then uses clone
    for numbers in refused.values():
        if numbers[column] >= 0:
            program += [(jump_equal, 0, 1, numbers[column]), refuse]
    for numbers, argument, mask, values, then, otherwise in only_if:
        tests = [step for value in values for step in ((jump_equal, 0, 1, value), then)]
        test = [(load, 0, 0, 16 + 8 * argument), (mask_with, 0, 0, mask), *tests, otherwise]
        program += [(jump_equal, 0, len(test), numbers[column]), *test]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, allow])


def install_seccomp(program: bytes) -> None:
    """Filter the calls of this process and of all that it starts."""
    program = program.replace(struct.pack("I", SELF), struct.pack("I", os.getpid()))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value)
    check(PRCTL(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def landlock_version() -> int:
    """0 where the kernel has no Landlock."""
    return max(0, SYSCALL(444, None, ctypes.c_size_t(0), 1))


def landlock_ruleset(readable: list[int], folders: list[int], work: int) -> int:
    """All rights in the folder `work`, reading (and running) in `readable`, listing `folders`, nothing anywhere else:
    no other file, no TCP, and where the kernel can, no signal and no abstract socket of a process outside.

    Takes and returns descriptors.
    """
    version = landlock_version()
    everything = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}.get(version, 0xFFFF)
    run, write, read, list_folder = 1, 2, 4, 8
    attributes = struct.pack("QQQ", everything, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = check(SYSCALL(444, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    for place in [*readable, *folders, work]:
        is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
        is_device = stat.S_ISCHR(os.fstat(place).st_mode)
        rights = run | read | (list_folder if is_folder else write * is_device)
        rights = everything if place == work else list_folder if place in folders else rights
        check(SYSCALL(445, ruleset, 1, struct.pack("=Qi", rights, place), 0), "landlock rule")
    return ruleset


def install_landlock(ruleset: int) -> None:
    """Bind this process, and all that it starts, to a ruleset."""
    check(SYSCALL(446, ruleset, 0), "landlock")


def limit(what: int, value: int) -> None:
    """Set a limit for good; never above the one in force."""
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    soft = value - 1 if what == resource.RLIMIT_CPU else value  # SIGXCPU tells what happened, SIGKILL would not
    resource.setrlimit(what, (soft, value))


def drop_capabilities() -> None:
    """Give up every capability, in whichever user namespace it holds."""
    check(LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)), "capset")


def become(user: int) -> None:
    """Take another user and group, for good. Only as root."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
