"""Create .venv from requirements.lock, unless it is up to date.

    make env        (make lab and make test do this first)

The last file written is a stamp with the lock's digest. An environment without a stamp counts as
unfinished and is recreated; if the digest is older, the changed packages are installed into it.

This file runs before the environment exists, on any `python3`. It uses only the standard library
and syntax that Python 3.6 can parse, so that an old Python can report that it is too old.
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
# Runs whenever the environment's Python starts. By default, a fifth of the time to import torch or
# nbgrader is spent on garbage collection that finds nothing.
START_FILE, START = "shardlab_start.pth", "import gc; gc.set_threshold(50_000)\n"
# Size of the environment: 1.9 GB with torch for CPUs, about 7 GB with torch for CUDA.
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


class SetupError(Exception):
    """Something that the user has to fix first; the message is one sentence that says how."""


def main() -> int:
    try:
        make(ROOT / ".venv", ROOT / "requirements.lock")
    except SetupError as error:
        print(f"shardlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nshardlab: interrupted; the next run starts over", file=sys.stderr)
        return 130
    return 0


def make(folder: Path, lock: Path) -> None:
    """Create or update the environment in `folder` from `lock`, unless it is up to date."""
    stamp = folder / ".ready"
    digest = hashlib.sha256(lock.read_bytes() + START.encode()).hexdigest()
    made_from = stamp.read_text() if stamp.exists() and runs_wanted_python(folder) else None
    if made_from == digest:
        return
    check_python()
    check_compiler()
    check_disk(folder.parent)
    if made_from is None:
        create(folder)
    else:
        print("requirements.lock has changed: updating .venv", flush=True)
        stamp.unlink()
    install(folder, lock)
    stamp.write_text(digest)


def runs_wanted_python(folder: Path) -> bool:
    """Whether the environment's Python runs and has the version requested by PYTHON=, if any."""
    try:
        answer = subprocess.run(
            [str(folder / "bin/python"), "-c", "import sys; print(sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False  # the Python it was created from is gone
    is_requested = "PYTHON" in os.environ
    same = answer.stdout.decode().strip() == str(tuple(sys.version_info[:2]))
    return answer.returncode == 0 and (same or not is_requested)


def check_python() -> None:
    if sys.version_info[:2] >= OLDEST:
        return
    newer = next((name for name in NEWER_NAMES if shutil.which(name)), None)
    remedy = f"run `make lab PYTHON={newer}`" if newer else "install one and try again"
    here, oldest = ("{}.{}".format(*version[:2]) for version in (sys.version_info, OLDEST))
    raise SetupError(f"Python {here} is too old, the course needs {oldest} or newer: {remedy}")


def check_compiler() -> None:
    wanted = os.environ.get("CXX")
    if any(shutil.which(name) for name in ((wanted,) if wanted else COMPILERS)):
        return
    raise SetupError(
        "no C++ compiler found, and DeepSpeed and torch.compile need one: install it "
        "(Debian, Ubuntu: `apt install g++`; macOS: `xcode-select --install`) and try again"
    )


def check_disk(folder: Path) -> None:
    needed_gb = DISK_CUDA_GB if shutil.which("nvidia-smi") else DISK_GB
    free_gb = shutil.disk_usage(str(folder)).free / 1e9
    if free_gb < needed_gb:
        raise SetupError(
            f"{folder} has {free_gb:.1f} GB free and the packages take up to {needed_gb} GB: "
            "free some space there, or clone the course to a larger disk"
        )


def create(folder: Path) -> None:
    """Create an empty environment in `folder`, replacing an unfinished one."""
    try:
        import ensurepip  # noqa: F401  Debian's python3 has venv but may lack ensurepip
        import venv
    except ImportError:
        raise SetupError(
            "this Python has no venv module: install it (Debian, Ubuntu: `apt install "
            "python{}.{}-venv`) and try again".format(*sys.version_info[:2])
        ) from None
    if folder.exists():
        print("recreating .venv: it was unfinished, or created by another Python", flush=True)
        shutil.rmtree(str(folder))
    print("creating .venv (a few seconds)", flush=True)
    venv.create(str(folder), with_pip=True)


def install(folder: Path, lock: Path) -> None:
    """Install the pinned packages, then the course's own two packages in editable mode."""
    log = folder / "install.log"
    began = time.monotonic()
    print("installing the pinned packages into .venv (a few minutes, once)", flush=True)
    pip(folder, log, "--no-compile", "-r", str(lock))
    print("compiling the packages, on all cores", flush=True)
    compile_all(folder)
    print("installing the course itself", flush=True)
    # setuptools is one of the pins: nothing more to download.
    pip(folder, log, "--no-deps", "--no-build-isolation", "-e", str(lock.parent))
    for packages in site_packages(folder):
        Path(packages, START_FILE).write_text(START)
    print(f"environment ready in {time.monotonic() - began:.0f} s", flush=True)


def pip(folder: Path, log: Path, *what: str) -> None:
    """Run `pip install`, with its output in a log and its progress on the terminal."""
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--no-input", *what]
    quiet = ["--disable-pip-version-check", "--progress-bar", "off"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command + quiet,
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            follow(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        raise SetupError(explain(log))


def compile_all(folder: Path) -> None:
    """Compile all packages to bytecode on all cores; pip would spend half its time on it."""
    python = str(folder / "bin/python")
    # Some packages contain templates that are not valid Python; pip ignores them, too.
    subprocess.run(
        [python, "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", *site_packages(folder)],
        stdin=subprocess.DEVNULL,
    )


def site_packages(folder: Path) -> list:
    return glob.glob(str(folder / "lib/python*/site-packages"))


def follow(process: "subprocess.Popen", log: Path) -> None:
    """Show pip's progress: on a terminal one line that is redrawn, elsewhere a line every 15 s."""
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
    """pip's current step in a few words, read from its log and the environment's folder."""
    lines = log.read_text(errors="replace").splitlines()
    # pip logs "Collecting" for a file from an index and "Processing" for a local one.
    named = [line.split()[1] for line in lines if line.startswith(("Collecting ", "Processing "))]
    if any(line.startswith("Installing collected packages") for line in lines):
        unpacked = len(list(log.parent.glob("lib/python*/site-packages/*.dist-info")))
        # pip itself is there too, so the count may exceed the number of named packages
        return f"unpacking package {min(unpacked, len(named))} of {len(named)}"
    if not named:
        return "starting pip"
    return f"{len(named)} packages so far: {file_and_size(lines[-1]) or file_name(named[-1])}"


def file_name(path: str) -> str:
    """ "torch-2.13.0" from the path of a wheel."""
    return "-".join(os.path.basename(path).split("-")[:2])


def file_and_size(line: str) -> str:
    """ "torch-2.13.0 (526.3 MB)" from the line in which pip announces a download, else ""."""
    words = line.split()
    return f"{file_name(words[1])} {' '.join(words[2:])}" if words[:1] == ["Downloading"] else ""


def explain(log: Path) -> str:
    """One sentence that says why pip failed."""
    text = log.read_text(errors="replace")
    if any(sign in text for sign in NO_SPACE):
        return "the disk filled up while installing: free some space and run `make lab` again"
    if any(sign in text for sign in NO_NETWORK):
        return (
            "the package index could not be reached: check the network (or pip's proxy settings) "
            f"and run `make lab` again; pip's output is in {log}"
        )
    errors = [line for line in text.splitlines() if line.lower().startswith("error")]
    first = errors[0][:200] if errors else "no error line"
    return f"pip failed ({first}): see {log}"


if __name__ == "__main__":
    sys.exit(main())
