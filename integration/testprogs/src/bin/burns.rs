//! Threads that burn CPU in known functions, and that wait in a known one inside polls.
//!
//! `burns FILE`: says `ready PID`; on `go` it works and says `done`; on `exit` it ends.
//! FILE has lines of words: `at NAME ADDRESS` and `cpu NAME NS` of each function, `late
//! TID` of a thread that is started meanwhile and runs `delta` alone, `naps N` and `all NS`,
//! the CPU time of the process.

use std::{
    env, fs,
    hint::black_box,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use rustix::{
    thread::gettid,
    time::{ClockId, clock_gettime},
};
use testprogs::{quiet, script};
use tokio::{
    runtime::{Builder, Runtime},
    task,
};

const ROUNDS: u64 = 25;
/// A turn of a loop takes about a ns.
const UNIT: u64 = 3_000_000;
const NAPS: u64 = 20;
const NAP: Duration = Duration::from_millis(10);

/// A function that burns CPU, its share of a round, and the CPU time spent in it, ns.
struct Burner {
    name: &'static str,
    run: fn(u64) -> u64,
    share: u64,
    cpu_ns: AtomicU64,
}

static BURNERS: [Burner; 4] = [
    Burner::new("alpha", alpha, 5),
    Burner::new("beta", beta, 3),
    Burner::new("gamma", gamma, 2),
    Burner::new("delta", delta, 4),
];

impl Burner {
    const fn new(name: &'static str, run: fn(u64) -> u64, share: u64) -> Self {
        Self {
            name,
            run,
            share,
            cpu_ns: AtomicU64::new(0),
        }
    }

    fn burn(&self) {
        let before = cpu_ns(ClockId::ThreadCPUTime);
        black_box((self.run)(black_box(self.share * UNIT)));
        let took = cpu_ns(ClockId::ThreadCPUTime) - before;
        self.cpu_ns.fetch_add(took, Relaxed);
    }
}

macro_rules! burner {
    ($name:ident, $factor:expr) => {
        #[inline(never)]
        fn $name(turns: u64) -> u64 {
            let mut value = black_box(1_u64);
            for _ in 0..turns {
                value = value.rotate_left(7).wrapping_mul($factor) ^ 0x55;
            }
            value
        }
    };
}

burner!(alpha, 0x9e37_79b9_7f4a_7c15);
burner!(beta, 0xc2b2_ae3d_27d4_eb4f);
burner!(gamma, 0x1656_67b1_9e37_79f9);
burner!(delta, 0x27d4_eb2f_1656_67c5);

/// Waits, as no poll should.
#[inline(never)]
fn naps() {
    for _ in 0..black_box(NAPS) {
        thread::sleep(NAP);
    }
}

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: burns FILE"));
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("threads can be had");
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");
    let before = cpu_ns(ClockId::ProcessCPUTime);
    let late = work(&runtime);
    let all = cpu_ns(ClockId::ProcessCPUTime) - before;
    let mut lines = format!("late {late}\nnaps {NAPS}\nall {all}\n");
    for Burner {
        name, run, cpu_ns, ..
    } in &BURNERS
    {
        let (address, cpu_ns) = (*run as *const () as u64, cpu_ns.load(Relaxed));
        lines += &format!("at {name} {address}\ncpu {name} {cpu_ns}\n");
    }
    let address = naps as *const () as u64;
    lines += &format!("at naps {address}\n");
    fs::write(path, lines).expect("FILE can be written");
    script::say("done");
    script::expect("exit");
}

/// Returns the thread that is started meanwhile.
fn work(runtime: &Runtime) -> i32 {
    let late = thread::spawn(|| {
        for _ in 0..ROUNDS {
            BURNERS[3].burn();
        }
        gettid().as_raw_nonzero().get()
    });
    let round = || async {
        for _ in 0..ROUNDS {
            for burner in &BURNERS[..3] {
                burner.burn();
                task::yield_now().await;
            }
        }
    };
    let tasks = [runtime.spawn(round()), runtime.spawn(round())];
    for task in tasks {
        runtime.block_on(task).expect("it does not panic");
    }
    let napping = runtime.spawn(async { naps() });
    runtime.block_on(napping).expect("it does not panic");
    late.join().expect("it does not panic")
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
