"""A real Slurm for tests: munge, one controller, one CPU node and two nodes of eight fake GPUs.

Everything listens on loopback, on free ports, with a key and a folder of its own; it needs Debian's
`slurm-wlm` and `munge` and starts in seconds, as root or as a plain user. By hand:

    python tests/slurm/cluster.py up      # prints the line that points your shell at it
    python tests/slurm/cluster.py down
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
NODES = {"cpu1": 0, "gpu1": 8, "gpu2": 8}
PARTITIONS = {"cpu": "cpu1", "gpu": "gpu1,gpu2"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "kmsg")
START_S = 30.0


def search_path() -> str:
    """PATH with the folders in which Debian puts the daemons."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SBIN}"


def missing_programs() -> list[str]:
    """Return the programs of Slurm and munge that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=search_path())]


def free_ports(count: int) -> list[int]:
    """Return `count` different free loopback ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def slurm_version() -> tuple[int, int]:
    """Return Slurm's version as (year, month)."""
    text = subprocess.run(
        ["slurmctld", "-V"], capture_output=True, text=True, env={**os.environ, "PATH": search_path()}
    ).stdout
    year, month = re.search(r"(\d+)\.(\d+)", text).groups()
    return int(year), int(month)


class SlurmCluster:
    """The cluster in `folder` (a short path: sockets want that); `with` starts and ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def conf(self) -> Path:
        """The configuration that SLURM_CONF must name."""
        return self.folder / "slurm.conf"

    def env(self, **extra: str) -> dict[str, str]:
        """Our environment pointed at this cluster, without a surrounding job's Slurm variables."""
        inherited = ("SLURM", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "CUDA_VISIBLE_DEVICES")
        env = {key: value for key, value in os.environ.items() if not key.startswith(inherited)}
        path = f"{self.folder}/bin:{search_path()}"
        return {**env, "SLURM_CONF": str(self.conf), "PATH": path, **extra}

    def run(self, *command: str, check: bool = True, timeout_s: float = 60) -> str:
        """Run a Slurm command against this cluster; return stdout and stderr together."""
        done = subprocess.run(
            command,
            env=self.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} exited {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def _write_conf(self) -> None:
        ports = free_ports(1 + len(NODES))
        user = getpass.getuser()
        host = socket.gethostname().partition(".")[0]
        lines = [
            "ClusterName=shardwright",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge.sock",
            "CredType=cred/munge",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "SlurmdParameters=config_overrides",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "GresTypes=gpu",
            "ReturnToService=1",
            "SchedulerParameters=sched_min_interval=100000,bf_interval=2",
            "MinJobAge=600",
            "KillWait=2",
            "OverTimeLimit=0",
            "InactiveLimit=0",
            "SlurmdTimeout=300",
            "PropagateResourceLimits=NONE",
        ]
        for port, (name, num_gpus) in zip(ports[1:], NODES.items(), strict=True):
            gres = f" Gres=gpu:{num_gpus}" if num_gpus else ""
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
                f" CPUs=64 RealMemory=1000000 State=UNKNOWN{gres}"
            )
        for number, (name, nodes) in enumerate(PARTITIONS.items()):
            default = "YES" if number == 0 else "NO"
            lines.append(
                f"PartitionName={name} Nodes={nodes} Default={default} MaxTime=7-0 DefaultTime=10 State=UP"
            )
        self.conf.write_text("\n".join(lines) + "\n")
        gpu_nodes = ",".join(name for name, num_gpus in NODES.items() if num_gpus)
        (self.folder / "gres.conf").write_text(
            f"NodeName={gpu_nodes} Name=gpu File={self.folder}/nvidia[0-7]\n"
        )
        if slurm_version() >= (23, 11):
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _write_wrappers(self) -> None:
        """Put these programs first on PATH: they count calls, and find our configuration.

        The plugin's job step drops SLURM_CONF, which elsewhere only points at another default file.
        """
        (self.folder / "bin").mkdir()
        for name in ("sbatch", "srun", "squeue"):
            wrapper = self.folder / "bin" / name
            real = shutil.which(name, path=search_path())
            wrapper.write_text(
                f'#!/bin/sh\necho {name} >>{self.folder}/calls\nSLURM_CONF={self.conf} exec {real} "$@"\n'
            )
            wrapper.chmod(0o755)

    def calls(self) -> dict[str, int]:
        """Count the sbatch and srun calls made so far."""
        path = self.folder / "calls"
        names = path.read_text().split() if path.exists() else []
        return {name: names.count(name) for name in ("sbatch", "srun")}

    def _make_devices(self) -> None:
        for number, name in enumerate(DEVICES):
            path = self.folder / f"nvidia{number}"
            if os.geteuid() == 0:
                os.mknod(path, 0o20666, os.makedev(1, 3))
            else:
                path.symlink_to(f"/dev/{name}")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        with (self.folder / "pids").open("a") as stream:
            stream.write(f"{name} {process.pid}\n")

    def up(self) -> None:
        """Start every daemon and wait until all nodes are idle.

        Raises:
            RuntimeError: Programs are missing, or the nodes did not come up in time.
        """
        if missing_programs():
            raise RuntimeError(
                f"not installed: {' '.join(missing_programs())}; apt-get install slurm-wlm munge"
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        (self.folder / "state").mkdir()
        self._write_conf()
        self._write_wrappers()
        self._make_devices()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._start(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            f"--socket={self.folder}/munge.sock",
            f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munge.seed",
            f"--log-file={self.folder}/munged.log",
        )
        self._wait(lambda: (self.folder / "munge.sock").exists(), "munged made no socket")
        self._start("slurmctld", "slurmctld", "-D", "-i", "-f", str(self.conf))
        for node in NODES:
            self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node, "-f", str(self.conf))
        self._wait(self.is_idle, "the nodes did not become idle")

    def is_idle(self) -> bool:
        """Tell whether the controller answers and all nodes wait for work."""
        states = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines()
        return len(states) == len(NODES) and all(line.endswith(" idle") for line in states)

    def _wait(self, condition, message: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                    for path in sorted(self.folder.glob("*.log"))
                )
                self.down(keep_folder=True)
                raise RuntimeError(f"{message} in {START_S:.0f} s\n{logs}")
            time.sleep(0.1)

    def pids(self) -> dict[str, int]:
        """Return the daemons that are still ours: name → process id."""
        path = self.folder / "pids"
        found = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            name, pid = line.rsplit(" ", 1)
            if _belongs(int(pid), self.folder):
                found[name] = int(pid)
        return found

    def _job_pids(self) -> list[int]:
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                    found.append(int(path.parent.name))
        return found

    def down(self, keep_folder: bool = False) -> None:
        """End the jobs and every daemon by process id, then remove the folder."""
        daemons = self.pids()
        if "slurmctld" in daemons:
            self.run("scancel", "--full", f"--user={getpass.getuser()}", check=False)
        for name in sorted(daemons, reverse=True):  # slurmd, slurmctld, munged
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemons[name], signal.SIGTERM)
        deadline = time.monotonic() + 3
        while (self.pids() or self._job_pids()) and time.monotonic() < deadline:
            for pid in daemons.values():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        for pid in {*self.pids().values(), *self._job_pids()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> SlurmCluster:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def _belongs(pid: int, folder: Path) -> bool:
    """Tell whether `pid` is alive and was started by the cluster in `folder` (ids are used again)."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] != "Z":
            return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def temporary_cluster():
    """Yield a running cluster in a fresh folder with a short name; end it afterwards."""
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="sw", dir="/tmp")))
    (cluster.folder).chmod(0o755)
    with cluster:
        yield cluster


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Start or end a Slurm of fake nodes on this machine.")
    parser.add_argument("action", choices=("up", "down", "status"))
    default = Path(f"/tmp/shardwright-slurm-{os.getuid()}")
    parser.add_argument("--folder", type=Path, default=default, help=f"where it lives (default {default})")
    args = parser.parse_args(argv)
    cluster = SlurmCluster(args.folder)
    if args.action == "down":
        cluster.down()
        return 0
    if args.action == "up" and not cluster.pids():
        cluster.down()
        started = time.monotonic()
        cluster.up()
        print(f"# up in {time.monotonic() - started:.1f} s; point your shell at it:", file=sys.stderr)
    if not cluster.pids():
        print("not running", file=sys.stderr)
        return 1
    if args.action == "status":
        print(cluster.run("sinfo", "--Node", "--long"))
    print(f"export SLURM_CONF={cluster.conf} PATH={cluster.folder}/bin:$PATH:{SBIN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
