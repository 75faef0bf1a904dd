"""A real Slurm on this machine: made-up GPUs, loopback alone, all of it in one folder; ends with what it started.

Debian's packages: slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin mariadb-server
munge. It needs root, as slurmd runs jobs of several users; nothing outside the folder is written.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time  # noqa: TID251 - waits for real daemons
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

PROGRAMS: Final = ("slurmctld", "slurmd", "slurmdbd", "sbatch", "mariadbd", "munged")
USERS: Final = ("games", "man", "lp", "mail", "news", "uucp", "proxy", "www-data")  # that every Debian has
NODES, GPUS = 4, 8
CPUS_A_GPU: Final = 8
_FIELDS: Final = "JobIDRaw,JobID,Cluster,User,Account,Partition,QOS,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw"
_CONF: Final = """\
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
KillWait=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={root}/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=64 \
RealMemory=64000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=train Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
{more}
"""
_DBD: Final = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
PidFile={root}/slurmdbd.pid
LogFile={root}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=local-test-only
StorageLoc=slurm_acct_db
"""
_SQL: Final = """
create database if not exists slurm_acct_db;
create user if not exists 'slurm'@'127.0.0.1' identified by 'local-test-only';
create user if not exists 'slurm'@'localhost' identified by 'local-test-only';
grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1'; grant all on slurm_acct_db.* to 'slurm'@'localhost';
"""


def why_not() -> str:
    if os.geteuid():
        return "a Slurm of several users needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed (Debian's packages)" if missing else ""


@dataclass(frozen=True, slots=True)
class RealSlurm:
    """One that runs.

    Attributes:
        conf: its `slurm.conf`.
    """

    conf: Path

    def ask(self, *words: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "TZ": "UTC"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def play(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Submit jobs at their times (columns `submit_s`, `run_s`, `gpus`, `user`, `limit_min`), and wait for all."""
        begun_s = time.monotonic()
        for row in rows:
            gpus = int(row["gpus"])
            each = min(gpus, GPUS)
            time.sleep(max(begun_s + float(row["submit_s"]) - time.monotonic(), 0.0))
            user = USERS[int(row["user"].removeprefix("user")) - 1]
            size = (f"-N{max(gpus // GPUS, 1)}", "--ntasks-per-node=1", f"-c{CPUS_A_GPU * each}", f"--gres=gpu:{each}")
            self.ask(
                *("sbatch", f"--uid={user}", "--chdir=/", "-o", "/dev/null", *size, f"-t{row['limit_min']}"),
                f"--wrap=exec sleep {row['run_s']}",
            )
        while self.ask("squeue", "-h"):
            time.sleep(1)
        time.sleep(3)  # ends come to the accounts in batches

    def export(self, log: Path) -> None:
        fields = f"{_FIELDS},State,NNodes,ReqTRES,AllocTRES"
        log.write_text(self.ask("sacct", "-a", "-X", "-D", "--parsable2", "-S", "2024-01-01", f"--format={fields}"))


@contextmanager
def real_slurm(*more: str) -> Iterator[RealSlurm]:
    """One with these further lines of `slurm.conf`."""
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryDirectory(prefix="slurm-") as root:
        Path(root).chmod(0o755)  # jobs of other users read their script there
        try:
            yield _started(Path(root), more, processes)
        finally:
            for process in reversed(processes):
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _started(root: Path, more: Sequence[str], processes: list[subprocess.Popen[bytes]]) -> RealSlurm:
    ports = _free_ports(3 + NODES)
    words = {
        "host": socket.gethostname().partition(".")[0], "root": root, "nodes": NODES, "gpus": GPUS,
        "sql_port": ports[0], "dbd_port": ports[1], "port": ports[2], "first_port": ports[3], "last_port": ports[-1],
        "more": "\n".join(more),
    }  # fmt: skip
    for name in ("munge", "state", "dev", *(f"spool/n{node}" for node in range(1, NODES + 1))):
        (root / name).mkdir(parents=True)
    (root / "munge" / "key").write_bytes(os.urandom(128))
    (root / "munge" / "key").chmod(0o600)
    for gpu in range(GPUS):  # an empty file is enough for a GPU
        (root / "dev" / f"gpu{gpu}").touch()
    (root / "slurm.conf").write_text(_CONF.format(**words))
    (root / "slurmdbd.conf").write_text(_DBD.format(**words))
    (root / "slurmdbd.conf").chmod(0o600)
    (root / "gres.conf").write_text(f"Name=gpu File={root}/dev/gpu[0-{GPUS - 1}]\n")
    (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    slurm, munge, data = RealSlurm(root / "slurm.conf"), root / "munge", root / "db"

    def begin(*command: str) -> None:
        environment = {**os.environ, "SLURM_CONF": str(slurm.conf)}
        with (root / f"{Path(command[0]).name}.out").open("ab") as out:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            processes.append(subprocess.Popen(command, env=environment, start_new_session=True, **quiet))  # type: ignore[call-overload]

    names = {name: f"--{name}={munge / name}" for name in ("pid-file", "log-file", "seed-file")}
    begin("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket", *names.values())
    _until(slurm, "munge", "-n", "-S", f"{munge}/socket")
    sql = ("--no-defaults", "--user=root", f"--datadir={data}")
    slurm.ask("mariadb-install-db", *sql, "--skip-test-db")
    address = ("--bind-address=127.0.0.1", f"--port={words['sql_port']}")
    begin("mariadbd", *sql, f"--socket={root}/sql", f"--pid-file={root}/sql.pid", *address, "--skip-log-bin")
    _until(slurm, "mariadb", "--no-defaults", "-S", f"{root}/sql", "-e", _SQL)
    begin("slurmdbd", "-D")
    _until(slurm, "sacctmgr", "-n", "show", "cluster")
    for what in (("cluster", "tiny"), ("account", "users"), ("user", ",".join(USERS), "account=users")):
        slurm.ask("sacctmgr", "-i", "add", *what)
    begin("slurmctld", "-D")
    _until(slurm, "scontrol", "ping")
    for node in range(1, NODES + 1):
        begin("slurmd", "-D", "-N", f"n{node}")
    _until(slurm, "sh", "-c", f'test "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" = {NODES}')
    return slurm


def _until(slurm: RealSlurm, *command: str) -> None:
    for _ in range(300):
        with suppress(AssertionError):
            slurm.ask(*command)
            return
        time.sleep(0.2)
    slurm.ask(*command)


def _free_ports(many: int) -> range:
    """So many in a row."""
    for first in range(26_000, 60_000, 100):
        sockets = [socket.socket() for _ in range(many)]
        try:
            for offset, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + offset))
            return range(first, first + many)
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no ports are free")
