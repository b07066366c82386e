"""Code that tries to get out of the python tool's sandbox, or to take more than it is given; and who judges it.

Each probe ends with ESCAPED on its output if it got through, or changes something that `World` watches from outside.
`python tests/escape_probes.py LEVEL ...` prints the table of docs/safety.md. It needs the standard library and
`gruppo.tools` only, so that it can be run as any user.
"""

from __future__ import annotations

import asyncio
import glob
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gruppo.tools.python import PythonTool
from gruppo.types import ToolResult

ESCAPED = "ESCAPED"
NAME = "gruppo-runaway"  # of processes that try to stay behind
HOME = os.path.expanduser("~")
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def call(name: str, *arguments: object, refused: str = "(1, 38)") -> str:
    """A system call by the name of its number on x86_64: it got through unless it ends with one of these errors."""
    numbers = {
        "ptrace": 101, "shmget": 29, "msgget": 68, "semget": 64, "bpf": 321, "keyctl": 250, "userfaultfd": 323,
        "io_uring_setup": 425, "perf_event_open": 298, "reboot": 169, "init_module": 175, "kexec_load": 246,
        "swapon": 167, "memfd_create": 319, "process_vm_readv": 310, "open_by_handle_at": 304, "add_key": 248,
        "mq_open": 240, "clone3": 435, "pidfd_getfd": 438, "fsopen": 430, "name_to_handle_at": 303,
    }  # fmt: skip
    listed = ", ".join(map(str, arguments))
    return f"{LIBC}assert libc.syscall({numbers[name]}, {listed}) >= 0 or ctypes.get_errno() not in {refused}"


FILES = {
    "read /etc/shadow": "open('/etc/shadow').read()",
    "read a host file": "open('/etc/hostname').read()",
    "read the answer key": "open(TRUTH).read()",
    "list the folder of the answer key": "import os\nassert os.listdir(os.path.dirname(TRUTH))",
    "list home": "import os\nassert len(set(os.listdir(HOME)) & set(IN_HOME)) > 1  # one may be the way to Python",
    "write outside": "open(FOLDER + '/written', 'w').write('x')",
    "change the answer key": "open(TRUTH, 'a').write('x')",
    "truncate the answer key": "import os\nos.truncate(TRUTH, 0)",
    "change the key's mode": "import os\nos.chmod(TRUTH, 0o777)",
    "change the key's times": "import os\nos.utime(TRUTH, (1, 1))",
    "delete the answer key": "import os\nos.unlink(TRUTH)",
    "move the answer key": "import os\nos.rename(TRUTH, 'mine')",
    "write into the standard library": "import os\nopen(os.__file__, 'a').write('#')",
    "leave a .pth or sitecustomize": "import os, sysconfig\nhere = os.path.dirname(os.__file__)\n"
    "os.makedirs(here + '/site-packages', exist_ok=True)\nopen(here + '/site-packages/x.pth', 'w')",
    "symbolic link to the key": "import os\nos.symlink(TRUTH, 'link')\nopen('link').read()",
    "hard link to the key": "import os\nos.link(TRUTH, 'link')\nopen('link').read()",
    "path of many ..": "open('../' * 40 + TRUTH).read()",
    "through inherited descriptors": "import os\nfor number in range(3, 256):\n    try:\n"
    "        os.open('../' * 40 + TRUTH, os.O_RDONLY, dir_fd=number)\n    except OSError:\n        continue\n"
    "    break\nelse:\n    raise OSError",
    "the host's /proc by a descriptor": "import os\nfor number in range(3, 256):\n    try:\n"
    "        os.open('1/status', os.O_RDONLY, dir_fd=number)\n    except OSError:\n        continue\n"
    "    break\nelse:\n    raise OSError",
    "inherited sockets": "import os, stat\nassert any(stat.S_ISSOCK(os.fstat(n).st_mode) for n in range(256)"
    " if os.path.exists(f'/proc/self/fd/{n}') or n < 3)",
    "/proc/1/root": "open('/proc/1/root' + TRUTH).read()",
    "cwd of the parent": "import os\nassert os.listdir(f'/proc/{os.getppid()}/cwd')",
    "import our package": "import sys\nsys.path.append(PACKAGE)\nimport gruppo.types",
    "import third-party packages": "import pydantic",
    "read third-party packages": "import glob, os\nhere = os.path.dirname(os.__file__)\n"
    "assert any([open(path).read(1) for path in glob.glob(here + '/*-packages/*/__init__.py')])",
    "watch the folder of the key": LIBC + "watch = libc.inotify_init()\n"
    "assert libc.inotify_add_watch(watch, os.path.dirname(TRUTH).encode(), 0xfff) >= 0",
    "host /tmp": "import os\nassert os.path.basename(FOLDER) in os.listdir(os.path.dirname(FOLDER))",
    "host /dev/shm": "import os\nassert os.listdir('/dev/shm') != os.listdir('.')\nopen('/dev/shm/x', 'w')",
    "/dev/kvm": "open('/dev/kvm')",
    "/dev/mem or a disk": "import glob\n"
    "assert any(open(path, 'rb').read(1) for path in ['/dev/mem', *glob.glob('/dev/[svn][dv]*')])",
    "make a device": "import os, stat\nos.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))",
    "setuid-root file": "import os\nopen('file', 'w').close()\nos.chown('file', 0, 0)\nos.chmod('file', 0o4755)",
    "chroot": "import os\nos.chroot('.')",
    "mount": LIBC + "assert libc.mount(b'tmpfs', b'.', b'tmpfs', 0, b'') == 0",
    "the new mount interface": call("fsopen", "b'tmpfs'", 0),
    "open by handle": call("open_by_handle_at", -100, 0, 0),
    "write core_pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('core')",
    "cgroup file system": "import os\nassert os.listdir('/sys/fs/cgroup')",
}
NETWORK = {
    "TCP to a loopback service": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)",
    "TCP by IPv6": "import socket\nsocket.socket(socket.AF_INET6)",
    "UDP": "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "raw socket or netlink": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "DNS": "import socket\nsocket.getaddrinfo('localhost', 80, family=socket.AF_INET)\n"
    "socket.getaddrinfo('example.com', 80)",
    "abstract unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect(ABSTRACT)",
    "unix socket by path": "import socket\nsocket.socket(socket.AF_UNIX).connect(FOLDER + '/socket')",
    "datagram of a socket pair": "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', ABSTRACT)",
    "bind and listen": "import socket\nsocket.create_server(('127.0.0.1', 0))",
    "sockets by io_uring": call("io_uring_setup", 4, "ctypes.create_string_buffer(120)"),
}
SECRETS = {
    "own environment": "import os\nassert SECRET[::-1] in str(os.environ)",
    "environment in /proc": "import glob\nassert any(SECRET[::-1].encode() in open(path, 'rb').read()"
    " for path in glob.glob('/proc/[0-9]*/environ') if path.split('/')[2] == str(GRADER))",
    "command lines in /proc": "assert open(f'/proc/{GRADER}/cmdline').read()",
    "memory of the grader": "open(f'/proc/{GRADER}/mem', 'rb').read(0)",
    "memory by process_vm_readv": call("process_vm_readv", "GRADER", 0, 0, 0, 0, 0),
    "memory of the parent": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(0)",
    "our own objects": "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict)"
    " and any(SECRET[::-1] in str(v) for v in list(o.values()) if isinstance(v, str))]\nassert found",
    "descriptors of another": call("pidfd_getfd", 3, 0, 0),
}
PROCESSES = {
    "signal the grader": "import os\nos.kill(GRADER, 0)",
    "kill the grader": "import os\nos.kill(GRADER, 9)",
    "signal us": "import os\nos.kill(US, 0)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\nraise OSError('judged by what comes after')",
    "interrupt the parent": "import os\nos.kill(os.getppid(), 2)\nraise OSError('judged by what comes after')",
    "kill everything": "import os\nos.kill(-1, 9)\nraise OSError('judged by what comes after')",
    "ptrace the grader": LIBC + "assert libc.ptrace(16, GRADER, 0, 0) == 0",
    "ptrace the parent": LIBC + "assert libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "see other processes": "import os\nassert str(GRADER) in os.listdir('/proc')",
    "limits of another": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "renice": "import os\nos.nice(-5)",
    "real-time scheduling": "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "raise an own limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "capabilities": LIBC + "found = ctypes.create_string_buffer(24)\n"
    "assert libc.capget(bytes.fromhex('2205082000000000'), found) == 0 and any(found.raw)",
    "become root": "import os\nos.setuid(0)",
    "run a setuid program": "import subprocess\nassert '(root)' in subprocess.run(['su', '-c', 'id', '-s', '/bin/sh'],"
    " capture_output=True, text=True, stdin=-3).stdout",
    "new privileges": "assert 'NoNewPrivs:\\t0' in open('/proc/self/status').read()",
    "new user namespace": LIBC + "assert libc.unshare(0x10000000) == 0",
    "user namespace by clone": LIBC
    + "pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)\n"
    "assert pid > 0",
    "user namespace by clone3": call("clone3", 0, 88),
    "join a namespace": LIBC + "assert libc.setns(os.open('/proc/1/ns/mnt', 0), 0) == 0",
    "bpf": call("bpf", 0, 0, 0),
    "io_uring": call("io_uring_setup", 1, "ctypes.create_string_buffer(120)"),
    "keyctl": call("keyctl", 0, -3, 0, 0, 0),
    "add_key": call("add_key", "b'user'", "b'x'", "b'y'", 1, -3),
    "userfaultfd": call("userfaultfd", 1),
    "perf_event_open": call("perf_event_open", 0, 0, -1, -1, 0),
    "reboot": call("reboot", 0, 0, 0, 0),
    "kernel module": call("init_module", 0, 0, 0),
    "kexec": call("kexec_load", 0, 0, 0, 0),
    "swap": call("swapon", 0, 0),
    "System V shared memory": call("shmget", 4242, 4096, 0o1600),
    "System V messages": call("msgget", 4242, 0o1600),
    "System V semaphores": call("semget", 4242, 1, 0o1600),
    "POSIX messages": call("mq_open", "b'gruppo'", 0o102, 0o600, 0),
    "type into a terminal": "import fcntl\ntry:\n    fcntl.ioctl(0, 0x5412, b'x')\nexcept OSError as error:\n"
    "    assert error.errno != 1",
    "daemon": LIBC + f"libc.prctl(15, b'{NAME}')\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        import time\n        time.sleep(60)\n    os._exit(0)\nos.wait()\nraise OSError('judged by what is left')",
    "daemon deaf to signals": LIBC + f"import signal, time\nlibc.prctl(15, b'{NAME}')\nif os.fork() == 0:\n"
    "    libc.prctl(1, 0)\n    for number in range(1, 65):\n        try:\n"
    "            signal.signal(number, signal.SIG_IGN)\n"
    "        except (OSError, ValueError):\n            pass\n    os.setsid()\n    time.sleep(60)\ntime.sleep(0.1)\n"
    "raise OSError('judged by what is left')",
}
RESOURCES = {
    "400 forks": "import os, time\nfor _ in range(400):\n    if os.fork() == 0:\n        time.sleep(9)\n",
    "400 threads": "import threading, time\nfor _ in range(400):\n"
    "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "3 GB in one process": "x = bytearray(3 << 30)\nfor i in range(0, 3 << 30, 4096): x[i] = 1",
    "3 x 250 MB in processes": "import os, time\nread, write = os.pipe()\nfor _ in range(3):\n"
    "    if os.fork() == 0:\n        x = b'x' * (250 << 20)\n        os.write(write, b'x')\n        time.sleep(9)\n"
    "os.close(write)\ntime.sleep(.3)\nfor _ in range(3): assert os.read(read, 1)\ntime.sleep(.1)",
    "one file of 300 MB": "with open('big', 'wb') as file:\n    for _ in range(300): file.write(b'x' * (1 << 20))",
    "40 files of 8 MB": "for i in range(40):\n    with open(f'f{i}', 'wb') as file: file.write(b'x' * (8 << 20))\n"
    "import time\ntime.sleep(.3)",
    "unlinked files": "import os, time\nkept = []\nfor i in range(5):\n    kept.append(open('f', 'wb'))\n"
    "    kept[-1].write(b'x' * (20 << 20))\n    kept[-1].flush()\n    os.unlink('f')\ntime.sleep(.3)",
    "files in memory": "import os, time\nkept = [os.memfd_create('x') for _ in range(40)]\n"
    "for n in kept: os.write(n, b'x' * (30 << 20))",
    "60,000 files": "for i in range(60_000): open(f'f{i}', 'w').close()\nimport time\ntime.sleep(.3)",
    "endless output": "for _ in range(1_000_000): print('x' * 1000)",
    "zip bomb": "import zlib\nbomb = zlib.compress(bytes(10 ** 8) , 9)\nx = [zlib.decompress(bomb) for _ in range(30)]",
}
CLOCK = {
    "endless loop": "import time\nend = time.monotonic() + 6\nwhile time.monotonic() < end: pass",
    "endless sleep": "import time\ntime.sleep(6)",
    "huge integer": "import threading\nprint(len(str(7 ** 10 ** 9)))",
    "deep recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f([x])\nf(0)",
    "regular expression": "import re, time\nstart = time.monotonic()\nre.match('(a+)+$', 'a' * 64 + 'b')\n"
    "assert time.monotonic() > start + 2",
    "endless trickle": "import time\nend = time.monotonic() + 6\n"
    "while time.monotonic() < end: print(end='.', flush=True)",
}
PROBES: Mapping[str, str] = {**FILES, **NETWORK, **SECRETS, **PROCESSES, **RESOURCES, **CLOCK}
LIMITS = {"seconds": 1.2, "memory_mb": 512, "disk_mb": 64, "processes": 16, "concurrent": 2}


class World:
    """What is to be protected, and what tells that it was not: files, sockets, a grader's process, our environment."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gruppo-probes-"))
        self.folder.chmod(0o777)
        self.truth = self.folder / "truth"
        self.secret = os.urandom(8).hex()
        self.servers = [socket.create_server(("127.0.0.1", 0)), *(socket.socket(socket.AF_UNIX) for _ in range(2))]
        self.abstract = f"\0{NAME}-{os.getpid()}"
        self.servers[1].bind(self.abstract)
        self.servers[2].bind(str(self.folder / "socket"))
        for server in self.servers[1:]:
            server.listen()
        environment = {**os.environ, "GRUPPO_TEST_SECRET": self.secret}
        self.grader = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
        self.restore()

    def restore(self) -> None:
        self.truth.write_text("the answer")
        self.truth.chmod(0o666)
        os.utime(self.truth, (0, 0))
        self.seen = self.look()

    def look(self) -> tuple[object, ...]:
        status = self.truth.stat() if self.truth.exists() else None
        state = status and (status.st_mode, status.st_size, status.st_mtime, status.st_nlink)
        return state, sorted(path.name for path in self.folder.iterdir()), self.grader.poll()

    def fill(self, probe: str) -> str:
        """The code of a probe with what it may know; the secret is turned round, or it would find itself."""
        known = {
            "TRUTH": str(self.truth), "FOLDER": str(self.folder), "US": os.getpid(), "HOME": HOME,
            "IN_HOME": os.listdir(HOME),
            "PORT": self.servers[0].getsockname()[1], "ABSTRACT": self.abstract, "SECRET": self.secret[::-1],
            "GRADER": self.grader.pid, "PACKAGE": str(Path(__file__).parents[1]),
        }  # fmt: skip
        return f"{', '.join(known)} = {', '.join(map(repr, known.values()))}\n{PROBES[probe]}\nprint({ESCAPED!r})"

    def try_out(self, python: PythonTool, probe: str) -> tuple[bool, ToolResult]:
        """(whether the probe got out, what the tool said)."""
        result = asyncio.run(python.call({"code": self.fill(probe)}))
        got_out = ESCAPED in result.output or self.look() != self.seen or bool(left_behind())
        if self.grader.poll() is None:
            self.restore()
        still_there = asyncio.run(python.call({"code": "print('there')"})) == ToolResult(True, "there\n")
        return got_out or not still_there, result

    def close(self) -> None:
        self.grader.kill()
        self.grader.communicate()
        for server in self.servers:
            server.close()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def left_behind() -> list[str]:
    """Processes of ours that are still there."""
    found = []
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            found += [path] if NAME[:15] in Path(path).read_text() else []
        except OSError:  # it has ended
            continue
    return found


def table(levels: list[str]) -> str:
    """A row per probe, a column per level: X got through, . was stopped."""
    if "process" in levels and os.getuid() != 0:
        raise SystemExit("a probe kills all processes of its user: as a plain user, not at the level 'process'")
    world = World()
    marks: dict[str, list[str]] = {probe: [] for probe in PROBES}
    for level in levels:
        python = PythonTool(level=level, min_level="process", **LIMITS)
        for probe in PROBES:
            marks[probe].append("X" if world.try_out(python, probe)[0] else ".")
            if world.grader.poll() is not None:  # it got the grader: another one for the others
                world.close()
                world = World()
        python.close()
        for path in left_behind():
            os.kill(int(path.split("/")[2]), 9)
    world.close()
    counts = [str(sum(row[column] == "X" for row in marks.values())) for column in range(len(levels))]
    rows = [["probe", *levels], ["---"] * (len(levels) + 1), *([probe, *row] for probe, row in marks.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*rows, [f"got through, of {len(PROBES)}", *counts]])


if __name__ == "__main__":
    print(table(sys.argv[1:]))
