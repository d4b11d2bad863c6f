//! A program that forks processes which have a Tokio runtime of their own, as a
//! pre-fork server does.
//!
//! `prefork [tokio]`: with `tokio` it has a runtime itself from the start on; says
//! `ready PID`. Every process takes the same words, those of the forked ones by way of
//! who forked them:
//!
//! - `fork`: forks a process, `forked PID`; `to N WORDS`: says WORDS to the Nth of its
//!   processes, from 0, and answers what that answers.
//! - `begin`: forgets what was counted; `work`: lets tasks work, `worked POLLS`; `truth
//!   FILE`: writes what was counted (see [`testprogs::count`]), `written`.
//! - `last FILE`: once there are no more words, it works once more, writes FILE and
//!   ends, `noted`.
//! - `brief`: forks a process that ends at once, `brief`; `command`: has others be
//!   executed, after a fork and without one, `ran`.
//! - `time N`: the CPU time of N polls that wake themselves, `took NS`; `exit`: ends.

use std::{
    error::Error,
    io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{self, Command, Stdio},
    time::Duration,
};

use testprogs::{count, cycles::timed, quiet, script};
use tokio::{
    runtime::{self, Runtime},
    sync::mpsc,
    task::yield_now,
    time::sleep,
};

const TASKS: u64 = 200;
const ITEMS: u64 = 1000;

/// A process that was forked.
struct Forked {
    words: PipeWriter,
    answers: BufReader<PipeReader>,
}

/// This process.
#[derive(Default)]
struct Server {
    runtime: Option<Runtime>,
    forked: Vec<Forked>,
    last: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut server = Server::default();
    if std::env::args().any(|arg| arg == "tokio") {
        server.runtime()?;
        quiet::wait_until_idle();
    }
    script::say_ready();
    server.serve(&mut io::stdin().lock(), &mut io::stdout())
}

impl Server {
    fn serve(
        &mut self,
        words: &mut dyn BufRead,
        answers: &mut dyn Write,
    ) -> Result<(), Box<dyn Error>> {
        loop {
            let mut line = String::new();
            if words.read_line(&mut line)? == 0 {
                return self.end();
            }
            let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let answer = match word {
                "fork" => self.fork()?,
                "to" => self.pass_on(rest)?,
                "begin" => {
                    count::forget();
                    count::begin();
                    "began".to_owned()
                }
                "work" => self.work()?,
                "truth" => {
                    count::write_truth(rest.as_ref())?;
                    "written".to_owned()
                }
                "last" => {
                    self.last = Some(rest.into());
                    "noted".to_owned()
                }
                "brief" => brief()?,
                "command" => command()?,
                "time" => self.time(rest.parse()?)?,
                _ => return Ok(()),
            };
            writeln!(answers, "{answer}")?;
            answers.flush()?;
        }
    }

    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(path) = self.last.take() {
            self.work()?;
            count::write_truth(&path)?;
        }
        Ok(())
    }

    fn runtime(&mut self) -> io::Result<&Runtime> {
        if self.runtime.is_none() {
            let mut builder = runtime::Builder::new_multi_thread();
            self.runtime = Some(builder.worker_threads(2).enable_time().build()?);
        }
        self.runtime.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    fn fork(&mut self) -> io::Result<String> {
        // Threads that are parked are in lists of parking_lot, and are not in the copy.
        drop(self.runtime.take());
        let (to_hear, words) = io::pipe()?;
        let (answers, mut to_answer) = io::pipe()?;
        match fork()? {
            0 => {
                drop((words, answers));
                self.forked.clear();
                self.last = None;
                count::forget();
                let served = self.serve(&mut BufReader::new(to_hear), &mut to_answer);
                process::exit(i32::from(served.is_err()))
            }
            pid => {
                self.forked.push(Forked {
                    words,
                    answers: BufReader::new(answers),
                });
                Ok(format!("forked {pid}"))
            }
        }
    }

    fn pass_on(&mut self, rest: &str) -> Result<String, Box<dyn Error>> {
        let (index, words) = rest.split_once(' ').ok_or("to N WORDS")?;
        let forked = self.forked.get_mut(index.parse::<usize>()?);
        let forked = forked.ok_or("there is no such process")?;
        writeln!(forked.words, "{words}")?;
        let mut answer = String::new();
        forked.answers.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }

    fn work(&mut self) -> io::Result<String> {
        self.runtime()?.block_on(async {
            let (send, mut items) = mpsc::channel(4);
            let sink = count::spawn("sink", async move { while items.recv().await.is_some() {} });
            let source = count::spawn("source", async move {
                for item in 0..ITEMS {
                    send.send(item).await.expect("the sink is there");
                }
            });
            for number in 0..TASKS {
                let task = count::spawn("work", async move {
                    yield_now().await;
                    sleep(Duration::from_micros(number)).await;
                });
                task.await.expect("it does not panic");
            }
            source.await.expect("it does not panic");
            sink.await.expect("it does not panic");
        });
        quiet::wait_until_idle();
        Ok(format!("worked {}", count::total_polls()))
    }

    fn time(&mut self, cycles: u64) -> Result<String, Box<dyn Error>> {
        let runtime = self.runtime()?;
        let ns = runtime.block_on(async { tokio::spawn(timed(cycles)).await })?;
        Ok(format!("took {ns}"))
    }
}

/// 0 in the process that was forked. Nothing else runs here while this does.
#[expect(unsafe_code, reason = "there is no other way to fork")]
fn fork() -> io::Result<i32> {
    // SAFETY: other threads, if there are any, are asleep and hold no lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

fn brief() -> io::Result<String> {
    if fork()? == 0 {
        process::exit(0);
    }
    Ok("brief".to_owned())
}

#[expect(unsafe_code, reason = "what makes std fork instead of spawn")]
fn command() -> io::Result<String> {
    for forks in [false, true] {
        let mut command = Command::new("true");
        command.stdin(Stdio::null());
        if forks {
            // SAFETY: it does nothing.
            unsafe { command.pre_exec(|| Ok(())) };
        }
        command.status()?;
    }
    Ok("ran".to_owned())
}
