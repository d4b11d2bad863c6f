//! What the machine has in its memory.
//!
//! In: the tracer, the tests of the rows, the programs that they start. Out: an archive that
//! the kernel unpacks and whose `/init` runs the tests. Never: a file from outside of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::folder;
use super::rows::Row;
use crate::shell;

/// What `/init` and the tests start; busybox has what is not here.
const PROGRAMS: [&str; 6] = ["busybox", "bpftool", "fio", "filefrag", "nm", "readelf"];
/// Size of the disk, MiB.
const DISK_MIB: u64 = 128;
/// Profiles of the programs that the tests trace, and their folders.
const PROFILES: [&str; 2] = ["release", "stripped"];
/// A test may take so long, s; what it waits for has limits of its own.
const TEST_LIMIT: u32 = 400;

/// Everything before the tests. Lines that begin with `@` are read outside.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin DIAL9_BPF_TESTPROGS=/testprogs DIAL9_BPF_BIN=/bin/dial9-bpf
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t ext4 /dev/nvme0n1 /disk
ip link set lo up
dmesg -n 1
cd /tmp
echo
echo "@kernel $(uname -r)"
seconds() { cut -d. -f1 /proc/uptime; }
run() {
    echo "@test $1 $2"
    begin=$(seconds)
    case $1 in
        block_io) folder=/disk ;;
        *) folder=/tmp ;;
    esac
    TMPDIR=$folder timeout LIMIT "/tests/$1" --exact "$2" --test-threads=1 >out 2>&1
    code=$?
    [ $code = 0 ] || tail -n 40 out | cut -c 1-2000
    echo "@code $code $(($(seconds) - begin))"
}
say() {
    timeout 60 dial9-bpf attach --pid "$program" --duration 1s --output "/tmp/said" "$@" 2>&1 |
        tr '\r' '\n' | sed 's/^/@said /'
}
(sleep 1000 | /testprogs/release/serve >/dev/null) &
sleep 1
program=$(pidof serve)
say
say --keep-rings
kill "$program"
"#;
const END: &str = r#"dmesg | grep -E 'WARNING:|BUG:|Oops' | sed 's/^/@complaint /'
echo "@end"
poweroff -f
"#;

/// The archive, in the cache.
pub(super) fn build(rows: &[&Row]) -> Result<PathBuf> {
    let tests: BTreeSet<_> = rows.iter().flat_map(|row| row.tests).collect();
    let root = folder().join("root");
    shell::empty(&root)?;
    for name in ["proc", "sys", "dev", "tmp", "disk", "bin", "tests"] {
        fs::create_dir(root.join(name))?;
    }
    let files: BTreeSet<_> = tests.iter().map(|(file, _)| *file).collect();
    for (name, executable) in test_executables(&files)? {
        strip(&executable, &root.join("tests").join(name), &root)?;
    }
    strip(&shell::tracer(), &root.join("bin/dial9-bpf"), &root)?;
    for program in PROGRAMS {
        let path = shell::find(program).with_context(|| format!("no {program}"))?;
        fs::copy(&path, root.join("bin").join(program))?;
        libraries(&path, &root)?;
    }
    test_programs(&root)?;
    let init = root.join("init");
    fs::write(&init, script(&tests)?)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    archive(&root)
}

/// A disk with an empty ext4, in the cache: the tests of block I/O need one.
pub(super) fn disk() -> Result<PathBuf> {
    let path = folder().join("disk.img");
    fs::File::create(&path)?.set_len(DISK_MIB << 20)?;
    let mut mkfs = Command::new("mkfs.ext4");
    shell::run(mkfs.args(["-q", "-F"]).arg(&path))?;
    Ok(path)
}

fn script(tests: &BTreeSet<&(&str, &str)>) -> Result<String> {
    let mut text = INIT.replace("LIMIT", &TEST_LIMIT.to_string());
    for (file, test) in tests {
        writeln!(text, "run {file} {test}")?;
    }
    Ok(text + END)
}

/// Builds the test files; their names and executables.
fn test_executables(files: &BTreeSet<&str>) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--quiet", "--no-run", "--message-format", "json"]);
    cargo.args(["--package", "dial9-bpf-integration"]);
    cargo.args(files.iter().flat_map(|file| ["--test", file]));
    let said = shell::output(&mut cargo)?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let executable = message.get("executable")?.as_str()?;
        let name = message["target"]["name"].as_str()?;
        files
            .contains(name)
            .then(|| (name.to_owned(), PathBuf::from(executable)))
    };
    let found: Vec<_> = said.lines().filter_map(executable).collect();
    ensure!(
        found.len() == files.len(),
        "not all of {files:?}: {found:?}"
    );
    Ok(found)
}

fn test_programs(root: &Path) -> Result<()> {
    for profile in PROFILES {
        let mut cargo = shell::cargo_apart("build", "integration/testprogs");
        shell::run(cargo.args(["--quiet", "--locked", "--profile", profile]))?;
        let to = root.join("testprogs").join(profile);
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(shell::root().join("target/testprogs").join(profile))? {
            let path = entry?.path();
            let is_program = path.is_file() && path.extension().is_none();
            if let (true, Some(name)) = (is_program, path.file_name()) {
                fs::copy(&path, to.join(name))?;
                libraries(&path, root)?;
            }
        }
    }
    Ok(())
}

/// Without debug information, which would take ten times the memory.
fn strip(from: &Path, to: &Path, root: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    shell::run(strip.args(["--strip-debug", "-o"]).arg(to).arg(from))?;
    libraries(from, root)
}

/// Copies the libraries that a program needs to where it looks for them.
fn libraries(program: &Path, root: &Path) -> Result<()> {
    // It fails for what is static.
    let listed = Command::new("ldd").arg(program).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    for path in listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let to = root.join(path.trim_start_matches('/'));
        if let (false, Some(folder)) = (to.exists(), to.parent()) {
            fs::create_dir_all(folder)?;
            fs::copy(path, &to).with_context(|| path.to_owned())?;
        }
    }
    Ok(())
}

/// The folder as the kernel unpacks it (Documentation/driver-api/early-userspace/).
fn archive(root: &Path) -> Result<PathBuf> {
    let path = folder().join("root.cpio");
    let mut names = Vec::new();
    list(root, root, &mut names)?;
    let mut cpio = Command::new("cpio")
        .args([
            "--create",
            "--quiet",
            "--null",
            "--format=newc",
            "--owner=0:0",
        ])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&path)?)
        .spawn()
        .context("cpio")?;
    let mut input = cpio.stdin.take().context("it is piped")?;
    for name in names {
        write!(input, "{}\0", name.display())?;
    }
    drop(input);
    let status = cpio.wait()?;
    ensure!(status.success(), "cpio: {status}");
    Ok(path)
}

fn list(root: &Path, folder: &Path, names: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        names.push(path.strip_prefix(root)?.to_owned());
        if path.is_dir() && !path.is_symlink() {
            list(root, &path, names)?;
        }
    }
    Ok(())
}
