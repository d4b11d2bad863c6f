//! Runs other programs.
//!
//! In: a `Command`. Out: its success, or an error that holds the command whole.
//! Never: a shell in between.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Time between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
}

/// Cargo in the workspace, with its own `target` whatever the environment says:
/// the paths that the documentation names are then true.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", root().join("target"));
    command
}

/// A cargo verb for a folder that is a workspace of its own, so that what is in
/// it is built as anybody's program is.
pub(crate) fn cargo_apart(verb: &str, folder: &str) -> Command {
    let manifest = Path::new(folder).join("Cargo.toml");
    let name = Path::new(folder).file_name().unwrap_or_default();
    let mut command = cargo();
    command
        .env("CARGO_TARGET_DIR", root().join("target").join(name))
        .args([verb, "--manifest-path"])
        .arg(manifest);
    command
}

/// `dial9-bpf`, once [`crate::build_ebpf::tracer`] has built it.
pub(crate) fn tracer() -> PathBuf {
    root().join("target/release/dial9-bpf")
}

/// Name and version of the kernel.
pub(crate) fn kernel() -> Result<String> {
    let kernel = output(Command::new("uname").arg("-sr"))?;
    let kernel = kernel.split(['-', '\n']).next().unwrap_or_default();
    Ok(kernel.to_owned())
}

/// Makes an empty folder, whatever is there.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

/// Runs `command` to its end; its output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start: {command:?}"))?;
    if !status.success() {
        bail!("{status}: {command:?}");
    }
    Ok(())
}

/// Runs `command` to its end and returns what it wrote to its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start: {command:?}"))?;
    if !output.status.success() {
        bail!("{}: {command:?}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("not text: {command:?}"))
}

/// Runs `command` to its end, shows what it writes and gives each line of it to
/// `line`. Returns whether it succeeded.
pub(crate) fn watch(mut command: Command, mut line: impl FnMut(&str)) -> Result<bool> {
    let (reader, writer) = std::io::pipe()?;
    let text = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start: {text}"))?;
    // It holds our ends of the pipe, which would never end.
    drop(command);
    for output in BufReader::new(reader).lines() {
        let output = output?;
        println!("{output}");
        line(&output);
    }
    let status = child.wait()?;
    if !status.success() {
        println!("{status}: {text}");
    }
    Ok(status.success())
}

/// A process that ends with this value.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `command`; what it prints goes where the caller says.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start: {command:?}"))?;
        Ok(Self(child))
    }

    /// What it prints, where that is piped; once.
    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Interrupts it as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), Signal::INT)?)
    }

    /// Waits until there is what `look` looks for; an error when the process ends
    /// before, or when `limit` has passed.
    pub(crate) fn wait_for<T>(
        &mut self,
        limit: Duration,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if let Some(status) = self.ended()? {
                bail!("it has ended: {status}");
            }
            if begun.elapsed() > limit {
                bail!("not within {limit:?}");
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// How it ended, if it has by itself.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where `program` is, if it is installed: on the path, among the system's
/// administration tools, or where `cargo install` puts it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .chain(cargo_bin())
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Whether we run as root.
pub(crate) fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}

fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("bin"))
}
