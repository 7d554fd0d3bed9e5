"""Record what Slurm itself answers to hpctrain's discovery, in versions that no single machine has installed.

    sudo python tests/clusters/record.py            # every version; minutes, some 100 MB of packages each
    sudo python tests/clusters/record.py 24.11

The packages of a Linux distribution that ships the version are unpacked into a temporary directory; in namespaces of their own (no
network but the loopback, its own host name, its own processes) a real munged, slurmdbd, slurmctld and a few slurmd run there, on the
made-up cluster of record_conf.py. The commands are those of `hpctrain.scheduler.discover`, and what they print is written as it is to
recorded/VERSION/. Needs Linux, root, dpkg-deb, unshare, ip, mknod, mariadbd, and curl.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record_conf

from hpctrain.scheduler import discover

HERE = Path(__file__).parent
DEBIAN = ("http://deb.debian.org/debian", ("main",))
UBUNTU = ("http://archive.ubuntu.com/ubuntu", ("main", "universe"))
#: Slurm's version → archive and suite of the distribution that ships it.
VERSIONS = {
    "20.11": (DEBIAN, "bullseye"),
    "21.08": (UBUNTU, "jammy"),
    "22.05": (DEBIAN, "bookworm"),
    "23.11": (UBUNTU, "noble"),
    "24.11": (DEBIAN, "trixie"),
    "25.11": (UBUNTU, "resolute"),
    "26.05": (DEBIAN, "forky"),
}
WANTED = (
    "slurmctld", "slurmd", "slurmdbd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin", "munge", "bash", "coreutils",
)  # fmt: skip
DAEMON_OF_THE_HOST = "/usr/sbin/mariadbd"


def packages_of(archive: str, components: tuple[str, ...], suite: str, cache: Path) -> dict[str, dict[str, str]]:
    """Return name → fields of every package of a suite, and of every name that one provides."""
    found: dict[str, dict[str, str]] = {}
    provided: dict[str, dict[str, str]] = {}
    for component in components:
        raw = fetch(f"{archive}/dists/{suite}/{component}/binary-amd64/Packages.xz", cache / f"{suite}-{component}.xz")
        for paragraph in lzma.decompress(raw.read_bytes()).decode().split("\n\n"):
            fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
            if "Package" in fields:
                found.setdefault(fields["Package"], fields)
                for name in names_in(fields.get("Provides", "")):
                    provided.setdefault(name[0], fields)
    return provided | found


def names_in(relation: str) -> list[list[str]]:
    """Return the alternatives of each dependency in `a (>= 1), b | c`."""
    return [[re.split(r"[\s(:]", name.strip())[0] for name in group.split("|")] for group in relation.split(",") if group.strip()]


def closure(packages: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return the packages that `WANTED` need, themselves included; of alternatives the first that exists."""
    chosen: dict[str, dict[str, str]] = {}
    queue = [name for name in WANTED if name in packages]
    while queue:
        fields = packages[queue.pop()]
        if fields["Package"] in chosen:
            continue
        chosen[fields["Package"]] = fields
        for key in ("Depends", "Pre-Depends"):
            for alternatives in names_in(fields.get(key, "")):
                name = next((name for name in alternatives if name in packages), None)
                # What only maintainer scripts need stays away: nothing is configured here.
                if name and name not in ("systemd", "adduser", "debconf", "ucf", "perl", "python3", "init-system-helpers"):
                    queue.append(name)
    return list(chosen.values())


def fetch(url: str, path: Path, sha256: str | None = None) -> Path:
    """Return the file at `url`, fetched once.

    Raises:
        ValueError: another file came than the suite's index says.
    """
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        subprocess.run(["curl", "--fail", "--silent", "--show-error", "--location", "--output", f"{path}.part", url], check=True)
        Path(f"{path}.part").rename(path)
    if sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        path.unlink()
        raise ValueError(f"{url} is not the file of the suite's index")
    return path


def unpack(version: str, root: Path, cache: Path) -> None:
    """Make the directory tree of a machine with that Slurm."""
    (archive, components), suite = VERSIONS[version]
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for fields in closure(packages_of(archive, components, suite, cache)):
        deb = fetch(f"{archive}/{fields['Filename']}", cache / suite / Path(fields["Filename"]).name, fields["SHA256"])
        # tar itself, because dpkg-deb would replace the links above by directories
        data = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], stdin=data.stdout, check=True)
        data.wait()
    for program in (root / "usr").glob("*bin/*-wlm"):  # what update-alternatives would do
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    folders = ["etc/slurm", "run/munge", "var/log/munge", "var/lib/munge", "var/spool/slurm", "var/log/slurm"]
    for name in (*folders, "proc", "sys", "tmp", "dev"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, minor in {"null": 3, "zero": 5, "random": 8, "urandom": 9, **{f"fake{index}": 3 for index in range(8)}}.items():
        os.mknod(root / "dev" / name, 0o20666, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)
    for name, text in record_conf.files(version).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600 if name.endswith("slurmdbd.conf") else 0o644)
    (root / "etc/munge.key").write_bytes(os.urandom(128))
    (root / "etc/munge.key").chmod(0o600)


class Machine:
    """The commands of the unpacked tree; made inside the namespaces."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "USER": "root", "MYSQL_UNIX_PORT": "/run/mysql.sock"}

    def start(self, *argv: str) -> None:
        log = (self.root / "tmp" / f"{Path(argv[0]).name}.log").open("ab")
        subprocess.Popen(["chroot", self.root, *argv], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def run(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", self.root, *argv], env=self.environment | (env or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=90,
        )  # fmt: skip

    def wait_for(self, *argv: str, until: str = "", seconds: int = 60) -> bool:
        """Run a command until it succeeds and prints `until`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = self.run(*argv)
            if done.returncode == 0 and re.search(until, done.stdout):
                return True
            time.sleep(0.5)
        print(f"  {' '.join(argv)}: {done.returncode} {done.stdout}{done.stderr}", file=sys.stderr)
        return False

    def accounting(self, commands: list[list[str]]) -> None:
        for command in commands:
            done = self.run("sacctmgr", "-i", *command)
            if done.returncode:
                print(f"  sacctmgr {' '.join(command)}: {done.stdout}{done.stderr}", file=sys.stderr)


def start_database(root: Path) -> None:
    data = root / "var/lib/mysql"
    options = ["--no-defaults", "--user=root", f"--datadir={data}"]
    subprocess.run(
        ["mariadb-install-db", *options, "--auth-root-authentication-method=normal", "--skip-test-db"], check=True, capture_output=True
    )
    subprocess.Popen(
        [DAEMON_OF_THE_HOST, *options, f"--socket={root}/run/mysql.sock", "--skip-networking", "--skip-log-bin"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (root / "run/mysql.sock").exists():
        time.sleep(0.2)


def inside(version: str, root: Path, target: Path) -> int:
    """Play the cluster and write what it says; the first process of the namespaces."""
    subprocess.run(["hostname", "ctl"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # With 127.0.0.1 alone, the C library thinks that there is no network (AI_ADDRCONFIG), and slurmdbd ends.
    subprocess.run(["ip", "address", "add", "10.9.8.7/32", "dev", "lo"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    # slurmd looks at the processors and wants to see control groups; it puts nothing into them here.
    subprocess.run(["mount", "--rbind", "/sys", root / "sys"], check=True)
    machine = Machine(root)
    start_database(root)
    machine.start("/usr/sbin/munged", "--foreground", "--force", "--key-file=/etc/munge.key", "--socket=/run/munge/munge.socket.2")
    time.sleep(1)
    machine.start("/usr/sbin/slurmdbd", "-D")
    if not machine.wait_for("sacctmgr", "-nP", "list", "cluster"):
        return 1
    machine.accounting(record_conf.qos())
    machine.start("/usr/sbin/slurmctld", "-D")
    # The controller is what tells the database that there are GPUs to count.
    if not machine.wait_for("scontrol", "ping", until="UP") or not machine.wait_for("sacctmgr", "-nP", "show", "tres", until="gpu:a100"):
        return 1
    machine.accounting(record_conf.accounts())
    for node in record_conf.RUNNING:
        machine.start("/usr/sbin/slurmd", "-D", "-N", node)
    nodes = ",".join(record_conf.RUNNING)
    if not machine.wait_for("sinfo", "-h", "-n", nodes, "-o", "%G", until=r"\(S:0-1\)", seconds=30):
        print(machine.run("sinfo", "-N", "-n", nodes, "-o", "%N %T %E %G").stdout, (root / "tmp/slurmd.log").read_text()[-1500:], sep="\n")
    for command in record_conf.events():
        done = machine.run(*command)
        print(f"  {' '.join(command)}: {done.returncode} {done.stdout}{done.stderr}".rstrip(), file=sys.stderr)
    time.sleep(3)
    write(machine, target)
    return 0


def write(machine: Machine, target: Path) -> None:
    """Ask as `discover` does, as the user of the made-up accounts, and once more with the accounting switched off."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, argv in discover.queries(record_conf.USER, {}).items():
        done = machine.run(*argv)
        (target / f"{name}.txt").write_text(done.stdout)
        if done.returncode:
            print(f"  {name}: {done.returncode} {done.stderr}", file=sys.stderr)
    # The same cluster, as its clients see it without accounting, and with a controller that is not there.
    for title, conf in (("no-accounting", "/etc/slurm/none.conf"), ("unreachable", "/etc/slurm/gone.conf")):
        lines = []
        for argv in discover.queries(record_conf.USER, {}).values():
            done = machine.run(*argv, env={"SLURM_CONF": conf})
            lines.append(f"## {argv[0]} {argv[2] if argv[0] == 'scontrol' else argv[-2]}: {done.returncode}\n{done.stderr}")
        (target / f"{title}.stderr.txt").write_text("".join(lines))


def record(version: str, cache: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix=f"slurm-{version}-") as scratch:
        root = Path(scratch)
        unpack(version, root, cache)
        unshare = ["unshare", "--mount", "--uts", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        target = HERE / "recorded" / version
        done = subprocess.run([*unshare, sys.executable, __file__, "--inside", version, scratch, target])
        if done.returncode:
            for log in sorted((root / "tmp").glob("*.log")):
                print(f"--- {log.name}", *log.read_text().splitlines()[-15:], sep="\n", file=sys.stderr)
        return done.returncode == 0


def main(words: list[str]) -> int:
    if words[:1] == ["--inside"]:
        return inside(words[1], Path(words[2]), Path(words[3]))
    cache = Path(os.environ.get("HPCTRAIN_PACKAGES", tempfile.gettempdir())) / "hpctrain-packages"
    cache.mkdir(exist_ok=True)
    failed = []
    for version in words or list(VERSIONS):
        print(f"Slurm {version}", file=sys.stderr)
        if not record(version, cache):
            failed.append(version)
    print(f"not recorded: {', '.join(failed)}" if failed else "recorded", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
