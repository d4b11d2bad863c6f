//! A program of 100 MB with 2,000 task types.
//!
//! In: nothing. Out: `ready PID` once a task of each type has run; it ends with the next
//! line of its standard input. All of it is loaded: 2,000 tasks with all that Tokio
//! makes for each, and padding with the shapes of code, constants, relocated
//! words, unwind tables and symbols.

use std::hint::black_box;

use tokio::runtime::Builder;
use tokio::task::{JoinHandle, yield_now};

unsafe extern "C" {
    /// Words that lead to all of the padding (`padding.s`).
    static padding_words: u8;
}

/// A task of a type of its own.
async fn job<const N: usize>() -> usize {
    let state = black_box([N; 4]);
    yield_now().await;
    state[N % 4]
}

fn main() {
    black_box(&raw const padding_words);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("threads can be had");
    let sum: usize = runtime.block_on(async {
        let mut sum = 0;
        for job in spawn_all() {
            sum += job.await.expect("it does not panic");
        }
        sum
    });
    assert_eq!(sum, (0..2_000).sum());
    println!("ready {}", std::process::id());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// One task of each type.
fn spawn_all() -> Vec<JoinHandle<usize>> {
    let mut jobs = Vec::with_capacity(2_000);
    macro_rules! one {
        ($n:expr) => {
            jobs.push(tokio::spawn(job::<{ $n }>()))
        };
    }
    macro_rules! ten_of {
        ($of:ident, $n:expr) => {
            $of!($n * 10);
            $of!($n * 10 + 1);
            $of!($n * 10 + 2);
            $of!($n * 10 + 3);
            $of!($n * 10 + 4);
            $of!($n * 10 + 5);
            $of!($n * 10 + 6);
            $of!($n * 10 + 7);
            $of!($n * 10 + 8);
            $of!($n * 10 + 9);
        };
    }
    macro_rules! ten {
        ($n:expr) => {
            ten_of!(one, ($n));
        };
    }
    macro_rules! hundred {
        ($n:expr) => {
            ten_of!(ten, ($n));
        };
    }
    macro_rules! thousand {
        ($n:expr) => {
            ten_of!(hundred, ($n));
        };
    }
    thousand!(0);
    thousand!(1);
    jobs
}
