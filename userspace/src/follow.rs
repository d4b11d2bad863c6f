//! Recorders of the processes that the target forks: for each a process of its own,
//! which is this command with the same arguments, for another target.
//!
//! In: what is there of them. Out: recorders, started and ended; what they say, with
//! the pid before it; what became of each. Never: more at a time than the limit; one
//! that outlives us: each ends when its stdin does.

use std::{
    collections::BTreeSet,
    env, fmt,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
};

use dial9_bpf_attach::forks::Forked;

use crate::exit;

/// How old a process has to be, ns: one that executes a program does so before.
pub(crate) const SETTLE_NS: u64 = 10_000_000;
/// What asks a recorder to end, on its stdin; the end of that asks it to hurry.
const STOP: &[u8] = b"\n";

/// The recorders.
#[derive(Debug)]
pub(crate) struct Followers {
    limit: usize,
    running: Vec<Follower>,
    /// Those for which one was started, as long as they are there.
    tried: BTreeSet<Forked>,
    /// Those for which there is no place.
    waiting: BTreeSet<Forked>,
    is_limit_told: bool,
    lines: (Sender<String>, Receiver<String>),
    tally: Tally,
}

/// What became of the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Recorders that were started.
    started: u64,
    recorded: u64,
    /// Gone before the links were live.
    gone: u64,
    /// Not Tokio, or not to be traced for another reason of its own.
    nothing: u64,
    /// For which there was never a place.
    unfollowed: u64,
    failed: u64,
    /// The exit code that stands for all of them.
    code: u8,
}

/// A running recorder.
#[derive(Debug)]
struct Follower {
    pid: u32,
    recorder: Child,
    /// Its stdin.
    lifeline: Option<ChildStdin>,
    reader: JoinHandle<()>,
}

impl Followers {
    /// For at most so many at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            running: Vec::new(),
            tried: BTreeSet::new(),
            waiting: BTreeSet::new(),
            is_limit_told: false,
            lines: mpsc::channel(),
            tally: Tally::default(),
        }
    }

    /// Starts recorders for those that have none and are old enough.
    pub(crate) fn follow(&mut self, alive: &[Forked], now_ns: u64) {
        let is_there = |forked: &Forked| alive.contains(forked);
        self.tried.retain(is_there);
        let waited = self.waiting.len();
        self.waiting.retain(is_there);
        self.tally.unfollowed += (waited - self.waiting.len()) as u64;
        for forked in alive {
            if self.tried.contains(forked) || forked.forked_ns + SETTLE_NS > now_ns {
                continue;
            }
            if self.running.len() < self.limit {
                self.waiting.remove(forked);
                self.tried.insert(*forked);
                self.start(forked.pid);
            } else if self.waiting.insert(*forked) && !self.is_limit_told {
                self.is_limit_told = true;
                let (pid, limit) = (forked.pid, self.limit);
                self.say(format!(
                    "fork {pid} waits: {limit} are followed, which is the limit (--follow-forks N)"
                ));
            }
        }
    }

    /// Whether one of these is still to be followed.
    pub(crate) fn lacks(&self, alive: &[Forked]) -> bool {
        alive.iter().any(|forked| !self.tried.contains(forked))
    }

    /// Takes note of recorders that have ended.
    pub(crate) fn reap(&mut self) {
        let mut index = 0;
        while let Some(follower) = self.running.get_mut(index) {
            match follower.recorder.try_wait() {
                Ok(None) => index += 1,
                Ok(Some(status)) => {
                    let follower = self.running.swap_remove(index);
                    // It has read to the end: the other one is closed.
                    let _ = follower.reader.join();
                    self.tally.take(status);
                }
                Err(error) => {
                    let pid = self.running.swap_remove(index).pid;
                    self.tally.fail(exit::FAILURE);
                    self.say(format!("fork {pid}: its recorder is lost: {error}"));
                }
            }
        }
    }

    /// Whether none is running.
    pub(crate) fn are_done(&self) -> bool {
        self.running.is_empty()
    }

    /// What was said since this was last asked.
    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.1.try_iter().collect()
    }

    /// Ends all recordings.
    pub(crate) fn stop(&mut self) {
        for lifeline in self.lifelines().flatten() {
            // Whoever does not hear it has ended.
            let _ = lifeline.write_all(STOP).and_then(|()| lifeline.flush());
        }
    }

    /// Has them hurry, once they were stopped.
    pub(crate) fn cut(&mut self) {
        self.lifelines().for_each(|lifeline| drop(lifeline.take()));
    }

    /// Ends those that do not.
    pub(crate) fn kill(&mut self) {
        for follower in &mut self.running {
            let _ = follower.recorder.kill();
        }
    }

    /// What became of the processes so far.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            unfollowed: self.tally.unfollowed + self.waiting.len() as u64,
            ..self.tally
        }
    }

    fn lifelines(&mut self) -> impl Iterator<Item = &mut Option<ChildStdin>> {
        self.running
            .iter_mut()
            .map(|follower| &mut follower.lifeline)
    }

    fn start(&mut self, pid: u32) {
        self.tally.started += 1;
        match Follower::start(pid, self.lines.0.clone()) {
            Ok(follower) => self.running.push(follower),
            Err(error) => {
                self.tally.fail(exit::FAILURE);
                self.say(format!("fork {pid}: no recorder can be started: {error}"));
            }
        }
    }

    fn say(&self, line: String) {
        // Both ends are here.
        let _ = self.lines.0.send(line);
    }
}

impl Follower {
    fn start(pid: u32, lines: Sender<String>) -> io::Result<Self> {
        let mut words = env::args_os();
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(words.next().unwrap_or_default())
            .args(words.next())
            .args(["--forked", &pid.to_string()])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // What the keyboard sends, we pass on.
            .process_group(0);
        let mut recorder = command.spawn()?;
        let lifeline = recorder.stdin.take();
        let said = recorder.stderr.take();
        let reader = thread::Builder::new()
            .name("dial9-fork".to_owned())
            .spawn(move || {
                let said = said
                    .into_iter()
                    .flat_map(|said| BufReader::new(said).lines());
                for line in said.map_while(Result::ok) {
                    let _ = lines.send(format!("fork {pid}: {line}"));
                }
            })?;
        Ok(Self {
            pid,
            recorder,
            lifeline,
            reader,
        })
    }
}

impl Tally {
    /// The exit code that stands for all.
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    fn take(&mut self, status: ExitStatus) {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        match code {
            Some(exit::DONE) => self.recorded += 1,
            Some(exit::LOST) => {
                self.recorded += 1;
                self.code = exit::first(self.code, exit::LOST);
            }
            Some(exit::NO_TARGET) => self.gone += 1,
            Some(exit::NOTHING_TO_TRACE) => self.nothing += 1,
            Some(code @ (exit::PRIVILEGE | exit::KERNEL)) => self.fail(code),
            _ => self.fail(exit::FAILURE),
        }
    }

    fn fail(&mut self, code: u8) {
        self.failed += 1;
        self.code = exit::first(self.code, code);
    }

    /// In words, where so many processes were forked.
    pub(crate) fn of(self, forked: u64) -> impl fmt::Display {
        let unseen = forked.saturating_sub(self.started + self.unfollowed);
        let parts = [
            (self.recorded, "recorded"),
            (self.gone + unseen, "gone before"),
            (self.nothing, "with nothing to trace"),
            (self.unfollowed, "beyond the limit"),
            (self.failed, "failed"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn what_is_normal_for_a_fork_is_no_failure() {
        let mut tally = Tally::default();
        let mut take = |code: u8| {
            tally.started += 1;
            tally.take(ExitStatus::from_raw(i32::from(code) << 8));
            tally.code()
        };
        assert_eq!(
            [exit::DONE, exit::NO_TARGET, exit::NOTHING_TO_TRACE].map(&mut take),
            [0; 3]
        );
        assert_eq!(take(exit::LOST), exit::LOST);
        assert_eq!(take(exit::KERNEL), exit::KERNEL);
        assert_eq!(take(exit::USAGE), exit::FAILURE);
        tally.take(ExitStatus::from_raw(9));
        tally.started += 1;
        assert_eq!(tally.code(), exit::FAILURE);
        assert_eq!(
            tally.of(9).to_string(),
            "2 recorded, 3 gone before, 1 with nothing to trace, 3 failed"
        );
    }

    #[test]
    fn what_has_no_place_waits_and_is_counted() {
        let mut followers = Followers::new(0);
        let forked = |pid| Forked { forked_ns: 0, pid };
        followers.follow(&[forked(1), forked(2)], SETTLE_NS - 1);
        assert!(followers.said().is_empty());
        followers.follow(&[forked(1), forked(2)], SETTLE_NS);
        assert!(followers.lacks(&[forked(1)]));
        followers.follow(&[forked(2)], SETTLE_NS);
        assert_eq!(followers.said().len(), 1);
        assert_eq!(followers.tally().of(2).to_string(), "2 beyond the limit");
    }
}
