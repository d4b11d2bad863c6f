//! A running test program.
//!
//! In: a program of `testprogs/` and its words. Out: its answers, each within
//! a limit. Never: a program that outlives its owner.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal};

use crate::{proc, target_dir::test_program, wait};

/// How a test program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// `cargo build --release`.
    Plain,
    /// One unit of code, so that equal poll functions are merged.
    Merged,
    /// Merged, and without symbols.
    Stripped,
    /// `panic = "abort"`.
    Abort,
    /// `cargo build`.
    Unoptimized,
}

impl Build {
    /// Cargo's profile.
    pub const fn profile(self) -> &'static str {
        match self {
            Self::Plain => "release",
            Self::Merged => "merged",
            Self::Stripped => "stripped",
            Self::Abort => "abort",
            Self::Unoptimized => "dev",
        }
    }

    /// Folder of that profile in a target directory.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::Unoptimized => "debug",
            _ => self.profile(),
        }
    }
}

/// A program that takes words and answers lines.
#[derive(Debug)]
pub struct TestProgram {
    child: Child,
    pid: u32,
    words: ChildStdin,
    lines: Receiver<String>,
    /// Lines heard while another was waited for.
    passed: Vec<String>,
    path: PathBuf,
}

impl TestProgram {
    /// Starts `name` without arguments.
    ///
    /// # Panics
    ///
    /// When it cannot be built or does not get ready.
    pub fn start(name: &str, build: Build) -> Self {
        Self::start_with(name, build, |_| ())
    }

    /// Starts `name` after `prepare` has had its way with the command.
    ///
    /// # Panics
    ///
    /// When it cannot be built or does not get ready.
    pub fn start_with(name: &str, build: Build, prepare: impl FnOnce(&mut Command)) -> Self {
        let path = test_program(name, build).unwrap_or_else(|error| panic!("{error:#}"));
        Self::start_at(&path, prepare)
    }

    /// Starts the program at `path` after `prepare` has had its way with the
    /// command.
    ///
    /// # Panics
    ///
    /// When it does not get ready.
    pub fn start_at(path: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(path);
        prepare(&mut command);
        let mut program = Self::run(command, path.to_owned());
        let ready = program.hear();
        assert_eq!(ready, format!("ready {}", program.pid()));
        program
    }

    /// Starts `name` with one argument in a pid namespace of its own, as a
    /// container's first process is.
    ///
    /// # Panics
    ///
    /// When it cannot be built or does not get ready.
    pub fn start_in_pid_namespace(name: &str, build: Build, arg: &Path) -> Self {
        let path = test_program(name, build).unwrap_or_else(|error| panic!("{error:#}"));
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.arg(&path).arg(arg);
        let mut program = Self::run(command, path);
        assert_eq!(program.hear(), "ready 1");
        program.pid = proc::only_child(program.child.id());
        program
    }

    fn run(mut command: Command, path: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let words = child.stdin.take().expect("it is piped");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self {
            pid: child.id(),
            child,
            words,
            lines,
            passed: Vec::new(),
            path,
        }
    }

    /// Its process id, as we see it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its executable.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says `word`.
    ///
    /// # Panics
    ///
    /// When the program is gone.
    pub fn say(&mut self, word: &str) {
        let said = writeln!(self.words, "{word}").and_then(|()| self.words.flush());
        said.unwrap_or_else(|error| panic!("{word:?} to {}: {error}", self.path.display()));
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// When there is none within twice [`wait::LIMIT`].
    pub fn hear(&mut self) -> String {
        self.lines
            .recv_timeout(2 * wait::LIMIT)
            .unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// The next line that begins with `answer`, without it; those before stay for
    /// [`TestProgram::rest`].
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn hear_until(&mut self, answer: &str) -> String {
        loop {
            let line = self.hear();
            if let Some(rest) = line.strip_prefix(answer) {
                return rest.trim().to_owned();
            }
            self.passed.push(line);
        }
    }

    /// What it said to nobody, once it has ended.
    pub fn rest(&mut self) -> Vec<String> {
        let mut passed = std::mem::take(&mut self.passed);
        passed.extend(self.lines.iter());
        passed
    }

    /// Says `word` and returns what follows `answer` in the answer.
    ///
    /// # Panics
    ///
    /// When it answers something else.
    pub fn ask(&mut self, word: &str, answer: &str) -> String {
        self.say(word);
        let heard = self.hear();
        match heard.strip_prefix(answer) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("{word:?} was answered by {heard:?}, not {answer:?}"),
        }
    }

    /// Asks for its count.
    ///
    /// # Panics
    ///
    /// When it answers anything else.
    pub fn count(&mut self) -> u64 {
        let count = self.ask("count", "count");
        count
            .parse()
            .unwrap_or_else(|error| panic!("{count:?}: {error}"))
    }

    /// Waits until its count has grown by `more`: it works.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn wait_for_progress(&mut self, more: u64) {
        let begin = self.count();
        wait::until("the program goes on working", || {
            (self.count() >= begin + more).then_some(())
        });
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for(&mut self.child, "the test program ends", wait::LIMIT)
    }

    /// Says `exit` and waits.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn exit(mut self) -> ExitStatus {
        self.say("exit");
        self.wait()
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Signals a child that has not been waited for.
///
/// # Panics
///
/// When the kernel refuses.
pub(crate) fn send_signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a child has a pid");
    rustix::process::kill_process(pid, signal).expect("our own child can be signalled");
}

/// Waits for a child's end.
pub(crate) fn wait_for(child: &mut Child, what: &str, limit: Duration) -> ExitStatus {
    wait::try_until(limit, || {
        child.try_wait().expect("a child can be waited for")
    })
    .unwrap_or_else(|| panic!("{what}: not within {limit:?}"))
}
