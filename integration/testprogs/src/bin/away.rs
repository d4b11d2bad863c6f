//! Threads that are off their CPUs for a known time and a known reason.
//!
//! `away FILE`: says `ready PID`; on `go` it works and says `done`; on `exit` it ends.
//! FILE has a line for each absence: `REASON TID BEGIN END WAKER TASK`, separated by
//! tabs, with times of `CLOCK_MONOTONIC` in ns, WAKER 0 for none and TASK 0 outside tasks.
//! Of `preempted` WAKER is how many times: the kernel's own count of it (`ru_nivcsw` of
//! man 2 getrusage) rose by that much between BEGIN and END, which lie as close as can be.

use std::{
    env, fs, mem,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use testprogs::{count::now_ns, quiet, script};
use tokio::{
    runtime::{Builder, Runtime},
    task,
};

const TIMES: usize = 10;
const NAP: Duration = Duration::from_millis(15);
const HELD: Duration = Duration::from_millis(12);
const WORK: Duration = Duration::from_millis(300);

/// A lock, and a thread that holds it for a while whenever it is told to.
struct Held {
    lock: Arc<Mutex<()>>,
    /// To be answered once it is held.
    ask: Sender<Sender<()>>,
    holder: thread::JoinHandle<()>,
    tid: u32,
}

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: away FILE"));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("threads can be had");
    let held = Held::start();
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");
    let mut lines = naps();
    lines.extend(waits(&held));
    lines.extend(polls(&runtime, &held));
    lines.extend(crowded());
    fs::write(path, lines.concat()).expect("FILE can be written");
    held.end();
    script::say("done");
    script::expect("exit");
}

impl Held {
    fn start() -> Self {
        let lock = Arc::<Mutex<()>>::default();
        let (ask, asked) = channel::<Sender<()>>();
        let (tell, told) = channel();
        let of_holder = Arc::clone(&lock);
        let holder = thread::spawn(move || {
            tell.send(tid()).expect("it is heard");
            hold(&of_holder, &asked);
        });
        let tid = told.recv().expect("it runs");
        Self {
            lock,
            ask,
            holder,
            tid,
        }
    }

    /// Waits for the lock while the other thread holds it.
    fn wait(&self, task: u64) -> String {
        let (answer, held) = channel();
        self.ask.send(answer).expect("it runs");
        held.recv().expect("it holds the lock");
        let begin = now_ns();
        drop(self.lock.lock().expect("nobody panics"));
        line(
            "blocked",
            tid(),
            [begin, now_ns()],
            u64::from(self.tid),
            task,
        )
    }

    fn end(self) {
        drop(self.ask);
        self.holder.join().expect("it does not panic");
    }
}

fn hold(lock: &Mutex<()>, asked: &Receiver<Sender<()>>) {
    for answer in asked {
        let guard = lock.lock().expect("nobody panics");
        answer.send(()).expect("it is waited for");
        thread::sleep(HELD);
        drop(guard);
    }
}

/// A timer wakes it.
fn naps() -> Vec<String> {
    let nap = |_| {
        let begin = now_ns();
        thread::sleep(NAP);
        line("blocked", tid(), [begin, now_ns()], 0, 0)
    };
    (0..TIMES).map(nap).collect()
}

/// The thread that unlocks wakes it.
fn waits(held: &Held) -> Vec<String> {
    (0..TIMES).map(|_| held.wait(0)).collect()
}

/// The same in the poll of a task.
fn polls(runtime: &Runtime, held: &Held) -> Vec<String> {
    let (ask, lock, tid) = (held.ask.clone(), Arc::clone(&held.lock), held.tid);
    let task = runtime.spawn(async move {
        let held = Held {
            lock,
            ask,
            holder: thread::spawn(|| ()),
            tid,
        };
        let id = task::id().to_string().parse().expect("a number");
        (0..TIMES).map(|_| held.wait(id)).collect()
    });
    runtime.block_on(task).expect("it does not panic")
}

/// Two threads share one CPU.
fn crowded() -> Vec<String> {
    let work = || {
        let mut cpus = CpuSet::new();
        cpus.set(0);
        sched_setaffinity(None, &cpus).expect("CPU 0 is there");
        preemptions()
    };
    let threads = [thread::spawn(work), thread::spawn(work)];
    threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("it does not panic"))
        .collect()
}

/// Works, and looks all the time whether it has been preempted. The difference of clock
/// and CPU time would not tell: a virtual machine's own absences are in neither.
fn preemptions() -> Vec<String> {
    let look = || (now_ns(), times_preempted(), now_ns());
    let mut lines = Vec::new();
    let start = Instant::now();
    let mut last = look();
    while start.elapsed() < WORK {
        let now = look();
        if now.1 > last.1 {
            lines.push(line("preempted", tid(), [last.0, now.2], now.1 - last.1, 0));
        }
        last = now;
    }
    lines
}

#[expect(unsafe_code, reason = "getrusage has no safe form for a thread")]
fn times_preempted() -> u64 {
    // SAFETY: all zeros are a value of this struct of numbers.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: `usage` is valid for writes.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(result, 0, "it cannot fail");
    usage.ru_nivcsw.unsigned_abs()
}

fn line(reason: &str, tid: u32, [begin, end]: [u64; 2], waker: u64, task: u64) -> String {
    format!("{reason}\t{tid}\t{begin}\t{end}\t{waker}\t{task}\n")
}

fn tid() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}
