"""Make .venv from requirements.lock, unless it is there and up to date.

    make env        (make lab and make test do this first)

The last thing written is a stamp holding the lock's digest: without it an environment counts as
unfinished and is made anew; with an older lock's digest the differences are installed into it.

This file runs before the environment exists, on whatever `python3` is: only the standard library,
and syntax that Python 3.6 can read, so that an old one gets as far as the sentence that says so.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
NEWER_NAMES = ("python3.14", "python3.13", "python3.12", "python3.11")
COMPILERS = ("c++", "g++", "clang++")
# What the environment takes: 1.9 GB with torch for CPUs, about 7 GB with torch for CUDA.
DISK_GB = 3
DISK_CUDA_GB = 10

NO_SPACE = ("No space left on device", "Errno 28", "Disk quota exceeded")
NO_NETWORK = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Connection refused",
    "Cannot connect to proxy",
    "CERTIFICATE_VERIFY_FAILED",
)


class Problem(Exception):
    """Something the reader has to mend first: one sentence that says what to do."""


def main() -> int:
    try:
        make(ROOT / ".venv", ROOT / "requirements.lock")
    except Problem as problem:
        print(f"shardlab: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nshardlab: stopped; the next try starts over", file=sys.stderr)
        return 130
    return 0


def make(folder: Path, lock: Path) -> None:
    """Bring the environment in `folder` to what `lock` says, unless it is there already."""
    stamp = folder / ".ready"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    made_from = stamp.read_text() if stamp.exists() and runs_wanted_python(folder) else None
    if made_from == digest:
        return
    check_python()
    check_compiler()
    check_disk(folder.parent)
    if made_from is None:
        create(folder)
    else:
        print("requirements.lock has changed: bringing .venv up to date", flush=True)
        stamp.unlink()
    install(folder, lock)
    stamp.write_text(digest)


def runs_wanted_python(folder: Path) -> bool:
    """Whether the environment has a Python that runs, and the one named by PYTHON= if one was."""
    try:
        answer = subprocess.run(
            [str(folder / "bin/python"), "-c", "import sys; print(sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False  # the Python it was made from is gone
    asked_for = "PYTHON" in os.environ
    same = answer.stdout.decode().strip() == str(tuple(sys.version_info[:2]))
    return answer.returncode == 0 and (same or not asked_for)


def check_python() -> None:
    if sys.version_info[:2] >= OLDEST:
        return
    newer = next((name for name in NEWER_NAMES if shutil.which(name)), None)
    remedy = f"say `make lab PYTHON={newer}`" if newer else "install one and try again"
    here, oldest = ("{}.{}".format(*version[:2]) for version in (sys.version_info, OLDEST))
    raise Problem(f"Python {here} is too old, the course needs {oldest} or newer: {remedy}")


def check_compiler() -> None:
    wanted = os.environ.get("CXX")
    if any(shutil.which(name) for name in ((wanted,) if wanted else COMPILERS)):
        return
    raise Problem(
        "no C++ compiler found, and DeepSpeed and torch.compile need one: install it "
        "(Debian, Ubuntu: `apt install g++`; macOS: `xcode-select --install`) and try again"
    )


def check_disk(folder: Path) -> None:
    needed_gb = DISK_CUDA_GB if shutil.which("nvidia-smi") else DISK_GB
    free_gb = shutil.disk_usage(str(folder)).free / 1e9
    if free_gb < needed_gb:
        raise Problem(
            f"{free_gb:.1f} GB free at {folder} and the packages take up to {needed_gb} GB: "
            "free some space there, or clone the course onto a larger disk"
        )


def create(folder: Path) -> None:
    """A new, empty environment in `folder`, in place of an unfinished one."""
    try:
        import ensurepip  # noqa: F401  Debian's python3 has venv without this half of it
        import venv
    except ImportError:
        raise Problem(
            "this Python has no venv module: install it (Debian, Ubuntu: `apt install "
            "python{}.{}-venv`) and try again".format(*sys.version_info[:2])
        ) from None
    if folder.exists():
        print("making .venv anew: it was unfinished, or made with another Python", flush=True)
        shutil.rmtree(str(folder))
    venv.create(str(folder), with_pip=True)


def install(folder: Path, lock: Path) -> None:
    """Install the pinned packages, then the course's own two as editable ones."""
    log = folder / "install.log"
    began = time.monotonic()
    print("installing the pinned packages into .venv (a few minutes, once)", flush=True)
    pip(folder, log, "--no-compile", "-r", str(lock))
    compile_all(folder)
    # setuptools is one of the pins: nothing more to fetch.
    pip(folder, log, "--no-deps", "--no-build-isolation", "-e", str(lock.parent))
    print(f"environment ready in {time.monotonic() - began:.0f} s", flush=True)


def pip(folder: Path, log: Path, *what: str) -> None:
    """`pip install`, its words going to a log and its progress to the terminal."""
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--no-input", *what]
    quiet = ["--disable-pip-version-check", "--progress-bar", "off"]
    with log.open("w") as words:
        process = subprocess.Popen(
            command + quiet,
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
        )
        try:
            follow(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        raise Problem(explain(log))


def compile_all(folder: Path) -> None:
    """Bytecode of all packages, on every core: pip's own compiling is half of its time, on one."""
    python = str(folder / "bin/python")
    packages = glob.glob(str(folder / "lib/python*/site-packages"))
    # Some packages hold templates that are no Python; pip passes over them, too.
    subprocess.run(
        [python, "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", *packages],
        stdin=subprocess.DEVNULL,
    )


def follow(process: "subprocess.Popen", log: Path) -> None:
    """Show how far pip is: one line that is rewritten, or a line each 15 s where none can be."""
    live = sys.stdout.isatty()
    began = time.monotonic()
    while not ended_within(process, 0.5 if live else 15):
        line = f"  {time.monotonic() - began:4.0f} s  {stage(log)}"
        print(f"\r{line:<78.78}" if live else line, end="" if live else "\n", flush=True)
    if live:
        print("\r" + " " * 78 + "\r", end="", flush=True)


def ended_within(process: "subprocess.Popen", seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def stage(log: Path) -> str:
    """pip's last step in a few words, read from its log and from what lies in the environment."""
    lines = log.read_text(errors="replace").splitlines()
    # pip says "Collecting" of an index's file and "Processing" of a local one.
    named = [line.split()[1] for line in lines if line.startswith(("Collecting ", "Processing "))]
    if any(line.startswith("Installing collected packages") for line in lines):
        unpacked = len(list(log.parent.glob("lib/python*/site-packages/*.dist-info")))
        return f"unpacking package {min(unpacked, len(named))} of {len(named)}"  # pip is one more
    if not named:
        return "starting pip"
    return f"{len(named)} packages so far: {file_and_size(lines[-1]) or file_name(named[-1])}"


def file_name(path: str) -> str:
    """ "torch-2.13.0" of a wheel's long name."""
    return "-".join(os.path.basename(path).split("-")[:2])


def file_and_size(line: str) -> str:
    """ "torch-2.13.0 (526.3 MB)" of the line with which pip begins a download, else ""."""
    words = line.split()
    return f"{file_name(words[1])} {' '.join(words[2:])}" if words[:1] == ["Downloading"] else ""


def explain(log: Path) -> str:
    """Why pip failed, as one sentence."""
    words = log.read_text(errors="replace")
    if any(sign in words for sign in NO_SPACE):
        return "the disk filled up while installing: free some space and say `make lab` again"
    if any(sign in words for sign in NO_NETWORK):
        return (
            "the package index could not be reached: check the network (or pip's proxy settings) "
            f"and say `make lab` again; pip's words are in {log}"
        )
    errors = [line for line in words.splitlines() if line.lower().startswith("error")]
    first = errors[0][:200] if errors else "no error line"
    return f"pip failed ({first}): the whole story is in {log}"


if __name__ == "__main__":
    sys.exit(main())
