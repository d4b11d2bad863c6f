//! Blocking tasks that write to a file past the page cache and have it synced.
//!
//! `disk DATA FILE`: says `ready PID`; on `go` it works and says `done`; on `exit` it ends.
//! DATA is there and large enough. FILE has a line for each task: `TID TASK WRITES BYTES
//! BEGIN END BEGIN END`, separated by tabs: its thread, its id, what it has written, and
//! between which times of `CLOCK_MONOTONIC`, in ns, it waited for `fsync` and for
//! `fdatasync`.

use std::{
    env,
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use rustix::thread::gettid;
use testprogs::{count::now_ns, script};
use tokio::{runtime::Builder, task};

const TASKS: u64 = 12;
/// The first task's; each has one more than the one before it.
const WRITES: u64 = 20;
const BLOCK: usize = 4096;

#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

fn main() {
    let mut paths = env::args_os().skip(1).map(PathBuf::from);
    let [data, told] = [(); 2].map(|()| paths.next().expect("usage: disk DATA FILE"));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("threads can be had");
    script::say_ready();
    script::expect("go");
    let lines = runtime.block_on(async {
        let start = |number| {
            let data = data.clone();
            task::spawn_blocking(move || work(&open(&data), number))
        };
        let tasks: Vec<_> = (0..TASKS).map(start).collect();
        let mut lines = String::new();
        for task in tasks {
            lines += &task.await.expect("it does not panic");
        }
        lines
    });
    fs::write(told, lines).expect("FILE can be written");
    script::say("done");
    script::expect("exit");
}

fn open(data: &PathBuf) -> File {
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(libc::O_DIRECT);
    file.open(data).expect("DATA is there")
}

/// Each writes where none of the others does.
fn work(file: &File, number: u64) -> String {
    let block = Aligned([1; BLOCK]);
    let writes = WRITES + number;
    for write in 0..writes {
        let place = (number * (WRITES + TASKS) + write) * BLOCK as u64;
        file.write_all_at(&block.0, place).expect("there is room");
    }
    let timed = |sync: fn(&File) -> std::io::Result<()>| {
        let begin = now_ns();
        sync(file).expect("it is synced");
        format!("{begin}\t{}", now_ns())
    };
    let syncs = [File::sync_all, File::sync_data].map(timed).join("\t");
    let [tid, task] = [
        gettid().as_raw_nonzero().to_string(),
        task::id().to_string(),
    ];
    let bytes = writes * BLOCK as u64;
    format!("{tid}\t{task}\t{writes}\t{bytes}\t{syncs}\n")
}
