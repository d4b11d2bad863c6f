//! Asking the helper.
//!
//! In: a program's file, addresses in it. Out: answers, in order, as many as came. Never:
//! a wait beyond the deadline; a helper that outlives its question.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufReader},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    Answer,
    wire::{Source, read_answer, read_peak, write_request},
};

/// How the helper is started: something that calls [`crate::child::run`].
#[derive(Clone, Debug)]
pub struct Helper {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// A helper at work, which ends with this.
struct Working(Child);

impl Drop for Working {
    fn drop(&mut self) {
        // It has ended already, or there is nothing more to be had from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A deadline as the limit of each wait.
struct Until<'a>(&'a UnixStream, Instant);

impl io::Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(Some(left_of(self.1)?))?;
        let mut socket = self.0;
        socket.read(bytes)
    }
}

fn left_of(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

impl Helper {
    /// What is at these addresses of a file, or of the kernel. Also returns why not all
    /// are answered, and the most memory that the helper had, KiB.
    pub(crate) fn ask(
        &self,
        (file, source): (Option<&File>, Source),
        addresses: &[u64],
        deadline: Instant,
    ) -> (Vec<Answer>, io::Result<u32>) {
        let mut answers = Vec::with_capacity(addresses.len());
        let done = self.exchange((file, source), addresses, deadline, &mut answers);
        (answers, done)
    }

    fn exchange(
        &self,
        (file, source): (Option<&File>, Source),
        addresses: &[u64],
        deadline: Instant,
        answers: &mut Vec<Answer>,
    ) -> io::Result<u32> {
        let (ours, theirs) = UnixStream::pair()?;
        let stdin = match file {
            Some(file) => file.try_clone()?.into(),
            None => Stdio::null(),
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .stdin(stdin)
            .stdout(OwnedFd::from(theirs))
            .stderr(Stdio::null())
            .env_clear()
            // What the keyboard says is for the recorder.
            .process_group(0);
        let _working = Working(command.spawn()?);
        // Its end of the socket is its own then.
        drop(command);
        ours.set_write_timeout(Some(left_of(deadline)?))?;
        write_request(&ours, source, addresses)?;
        let mut from = BufReader::new(Until(&ours, deadline));
        for _ in addresses {
            answers.push(read_answer(&mut from)?);
        }
        read_peak(&mut from)
    }
}
