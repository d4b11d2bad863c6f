//! The command under test.
//!
//! In: what to attach to. Out: what it said and how it ended. Never: a tracer
//! that outlives its owner.

use std::{
    ffi::OsString,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    program::{send_signal, wait_for},
    target_dir::tracer_binary,
    wait,
};

/// A command line of `dial9-bpf`.
#[derive(Debug)]
pub struct Attach {
    wrapper: Vec<OsString>,
    binary: Option<PathBuf>,
    args: Vec<OsString>,
}

impl Attach {
    /// `attach --pid PID --output DIR`, into one segment unless another
    /// `--rotate` follows.
    pub fn to(pid: u32, output: &Path) -> Self {
        let pid = pid.to_string();
        Self::command(&["attach", "--rotate", "off", "--pid", &pid, "--output"]).arg(output)
    }

    /// Any command line.
    pub fn command(args: &[&str]) -> Self {
        Self {
            wrapper: Vec::new(),
            binary: None,
            args: args.iter().map(OsString::from).collect(),
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// A copy of the command.
    #[must_use]
    pub fn binary(mut self, binary: PathBuf) -> Self {
        self.binary = Some(binary);
        self
    }

    /// Run by a command that takes one as its last arguments and becomes it.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Run with a store as dial9's environment names it: its endpoint, bucket and
    /// prefix, key and secret.
    #[must_use]
    pub fn uploading(
        self,
        endpoint: SocketAddr,
        [bucket, prefix]: [&str; 2],
        [key, secret]: [&str; 2],
    ) -> Self {
        let env = [
            "env".to_owned(),
            format!("AWS_ACCESS_KEY_ID={key}"),
            format!("AWS_SECRET_ACCESS_KEY={secret}"),
            "AWS_REGION=us-east-1".to_owned(),
            format!("AWS_ENDPOINT_URL=http://{endpoint}"),
            format!("DIAL9_S3_BUCKET={bucket}"),
            format!("DIAL9_S3_PREFIX={prefix}"),
        ];
        self.under(&env.each_ref().map(String::as_str))
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When there is no such command.
    pub fn start(self) -> Tracer {
        let binary = self.binary.map_or_else(tracer_binary, Ok);
        let binary = binary.unwrap_or_else(|error| panic!("{error:#}"));
        let mut words = self
            .wrapper
            .into_iter()
            .chain([binary.into_os_string()])
            .chain(self.args);
        let mut command = Command::new(words.next().expect("there is the binary"));
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let (send, messages) = mpsc::channel();
        thread::spawn(move || split_lines(stderr, |line| drop(send.send(line))));
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            split_lines(stdout, |line| text.extend([&line, "\n"]));
            text
        });
        Tracer {
            child,
            stdout: Some(stdout),
            messages,
            said: Vec::new(),
        }
    }

    /// Starts it and waits until its links are live.
    ///
    /// # Panics
    ///
    /// When that does not happen.
    pub fn attached(self) -> Tracer {
        let mut tracer = self.start();
        if let Err(outcome) = tracer.wait_until_attached() {
            panic!("did not attach: {outcome:#?}");
        }
        tracer
    }

    /// Starts it and waits for its end.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn outcome(self) -> Outcome {
        self.start().outcome()
    }
}

/// A running `dial9-bpf`.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    messages: Receiver<String>,
    said: Vec<String>,
}

impl Tracer {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line that says that all links are live.
    ///
    /// # Errors
    ///
    /// How it ended, when it ended before.
    ///
    /// # Panics
    ///
    /// When it does neither.
    pub fn wait_until_attached(&mut self) -> Result<(), Outcome> {
        self.wait_until_said("attached")
    }

    /// Waits for a line that starts so.
    ///
    /// # Errors
    ///
    /// How it ended, when it ended before.
    ///
    /// # Panics
    ///
    /// When it does neither.
    pub fn wait_until_said(&mut self, start: &str) -> Result<(), Outcome> {
        let begin = Instant::now();
        loop {
            let left = wait::LIMIT.saturating_sub(begin.elapsed());
            match self.messages.recv_timeout(left) {
                Ok(line) => {
                    let is_it = line.starts_with(start);
                    self.said.push(line);
                    if is_it {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.take_outcome()),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no {start:?} within {:?}: {:#?}", wait::LIMIT, self.said)
                }
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Interrupts it as Ctrl-C does, and waits for its end.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn interrupt(self) -> Outcome {
        self.signal(Signal::INT);
        self.outcome()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn outcome(mut self) -> Outcome {
        self.take_outcome()
    }

    fn take_outcome(&mut self) -> Outcome {
        let status = wait_for(&mut self.child, "dial9-bpf ends", LIMIT);
        let stdout = self.stdout.take().expect("it is taken once");
        self.said.extend(self.messages.iter());
        Outcome {
            code: status.code(),
            stdout: stdout.join().expect("reading does not panic"),
            stderr: self.said.drain(..).collect(),
        }
    }
}

/// Sealing may have to compress a lot.
const LIMIT: Duration = wait::LIMIT.saturating_mul(2);

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Everything said there.
    pub stdout: String,
    /// Lines said there; a status line that was overwritten counts as several.
    pub stderr: Vec<String>,
}

impl Outcome {
    /// Asserts the exit code.
    ///
    /// # Panics
    ///
    /// When it is another, with everything that was said.
    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts a failure: the exit code, and one line of reason that has all
    /// of `words` in it.
    ///
    /// # Panics
    ///
    /// When something is amiss, with everything that was said.
    #[track_caller]
    pub fn expect_failure(&self, code: i32, words: &[&str]) -> &Self {
        self.expect(code);
        let [line] = &self.stderr[..] else {
            panic!("not one line of reason: {self:#?}")
        };
        for word in words {
            assert!(line.contains(word), "no {word:?} in the reason: {self:#?}");
        }
        self
    }
}

/// Lines end with a line feed, or with the carriage return of a status line.
fn split_lines(mut from: impl Read, mut take: impl FnMut(String)) {
    let mut line = Vec::new();
    let mut bytes = [0; 4096];
    let mut finish = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            take(text);
        }
    };
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        for &byte in &bytes[..read] {
            match byte {
                b'\n' | b'\r' => finish(&mut line),
                _ => line.push(byte),
            }
        }
    }
    finish(&mut line);
}
