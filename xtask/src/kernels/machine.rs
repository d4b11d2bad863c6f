//! A virtual machine, from its start to its end.
//!
//! In: a kernel, what it has in memory, and a disk. Out: the lines of its console. Never: a
//! machine that outlives this, or runs for longer than the limit; a change of the disk's
//! file; a network.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::packages::Kernel;
use crate::shell::{self, Running};

/// What runs it.
pub(super) const QEMU: &str = "qemu-system-x86_64";
/// All tests of a kernel, emulated on a busy machine.
const LIMIT: Duration = Duration::from_hours(1);

/// Name and version of what runs it.
pub(super) fn version() -> Result<String> {
    let said = shell::output(Command::new(QEMU).arg("--version"))?;
    let first = said.lines().next().unwrap_or_default();
    let version = first.split(" version ").nth(1).unwrap_or(first);
    let number = version.split(' ').next().unwrap_or_default();
    Ok(format!("QEMU {number}"))
}

/// Runs the kernel until it powers off. One that does not in time is ended: its console
/// has no `@end` then.
pub(super) fn boot(
    (kernel, words): (&Kernel, &str),
    (image, disk): (&Path, &Path),
    accel: &str,
) -> Result<Vec<String>> {
    let mut qemu = Command::new(QEMU);
    qemu.args(["-accel", accel, "-cpu", "max", "-m", "2G", "-smp", "2"])
        .args([
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
            "-serial",
            "stdio",
        ])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(image)
        // Kernels for virtual machines have NVMe built in, but no virtio-blk.
        .args(["-device", "nvme,drive=disk,serial=disk", "-drive"])
        .arg(format!(
            "file={},format=raw,if=none,id=disk,snapshot=on",
            disk.display()
        ))
        .arg("-append")
        .arg(format!("console=ttyS0 quiet panic=-1 {words}"))
        .stdout(Stdio::piped());
    let mut running = Running::start(&mut qemu)?;
    let console = running.stdout().context("it is piped")?;
    let (send, received) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(console).split(b'\n').map_while(Result::ok);
        lines.into_iter().try_for_each(|line| send.send(line))
    });
    let begin = Instant::now();
    let mut lines = Vec::new();
    loop {
        match received.recv_timeout(LIMIT.saturating_sub(begin.elapsed())) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                println!("  {line}");
                lines.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(lines),
            Err(RecvTimeoutError::Timeout) => {
                println!("kernels: not within {LIMIT:?}: ended");
                return Ok(lines);
            }
        }
    }
}
