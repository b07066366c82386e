"""Lesson 1, the installation: what is here, what is missing, and which lesson would miss it.

    pip install -e ".[tune,tensorboard]"      # in a copy of the repository; without extras all but two lessons run
    python examples/hello_agents/01_install.py

`gruppo doctor` says more: the levels of the sandbox, devices, every extra. Nothing is trained and nothing downloaded.
"""

from __future__ import annotations

import sys

from gruppo.doctor import extras, memory_gb, version_of

NEEDED_BY = {"tune": "11_search.py, its last part", "tensorboard": "07_grpo.py --tensorboard"}


def main() -> None:
    """Print versions, then the extras that lessons use."""
    print(f"Python {sys.version.split()[0]}, {memory_gb():.0f} GB of memory")
    for package in ("gruppo", "torch", "transformers", "peft"):
        found = version_of(package)
        print(f"{package:>14} {found or 'MISSING'}")
        if not found:
            sys.exit(f"error: {package} is missing: pip install -e . in the repository's folder")
    for extra in extras():
        if extra.name in NEEDED_BY:
            state = f"lacks {', '.join(extra.missing)}" if extra.missing else "is installed"
            print(f"gruppo[{extra.name}] {state}: for {NEEDED_BY[extra.name]}")
    print("ready: go on with 02_first_run.py")


if __name__ == "__main__":
    main()
