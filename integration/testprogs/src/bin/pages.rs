//! A server of pages whose functions probe files name.
//!
//! `pages FILE CALLS RATE`: says `ready PID`; on `go` two threads call [`get_page`] CALLS
//! times each, RATE times a second together (0: as fast as they can), for three tenants in
//! turn, and [`describe`] every hundredth time; then it says `done`, and ends on `exit`.
//! FILE has a line for each call in the order of each thread: `page TID TENANT KEY RESULT`
//! or `text TID LENGTH TEXT`. Before and after, `rate` is answered by the calls a second
//! that one thread makes for a while.

use std::{
    env,
    fmt::Write as _,
    fs,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use rustix::thread::gettid;
use testprogs::{
    pages::{Request, depth, describe, get_page},
    script,
};

fn request(thread: u64, number: u64) -> Request {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&thread.to_be_bytes());
    Request {
        number,
        key,
        depth: -(i32::try_from(number % 1000).expect("it is small")),
    }
}

fn work(thread: u64, calls: u64, rate: u64) -> String {
    let tid = gettid().as_raw_nonzero();
    let mut log = String::new();
    let began = Instant::now();
    for number in 0..calls {
        let tenant = u32::try_from(number % 3).expect("it is small") + 7;
        let request = request(thread, number);
        let page = get_page(black_box(tenant), black_box(&request));
        black_box(request.number + u64::from(request.depth.unsigned_abs()));
        let key: String = request.key.iter().fold(String::new(), |mut key, byte| {
            write!(key, "{byte:02x}").expect("to a string");
            key
        });
        writeln!(log, "page {tid} {tenant} {key} {page}").expect("to a string");
        if number % 100 == 0 {
            let text = format!("page/{number}/{}", "ä".repeat(number as usize / 100 % 40));
            let length = describe(black_box(&text), black_box(number % 200 == 0));
            writeln!(log, "text {tid} {length} {text}").expect("to a string");
        }
        if number % 1000 == 0 {
            black_box(depth(black_box(5)));
        }
        if let Some(due) = (number * 2_000_000).checked_div(rate) {
            let ahead = Duration::from_micros(due).saturating_sub(began.elapsed());
            if ahead > Duration::from_millis(1) {
                thread::sleep(ahead);
            }
        }
    }
    log
}

fn rate() -> u64 {
    let began = Instant::now();
    let mut calls = 0;
    let request = request(0, 1);
    while began.elapsed() < Duration::from_millis(200) {
        for _ in 0..1000 {
            black_box(get_page(black_box(7), black_box(&request)));
        }
        calls += 1000;
    }
    calls * 5
}

fn main() {
    let mut args = env::args().skip(1);
    let file = args.next().expect("a file");
    let mut number = || {
        args.next()
            .map_or(0, |text| text.parse().expect("a number"))
    };
    let (calls, pace) = (number(), number());
    script::say_ready();
    let mut log = String::new();
    loop {
        match script::hear().as_str() {
            "go" => {
                let threads: Vec<_> = (0..2)
                    .map(|at| thread::spawn(move || work(at, calls, pace)))
                    .collect();
                for thread in threads {
                    log.push_str(&thread.join().expect("it does not panic"));
                }
                fs::write(&file, &log).expect("the file can be written");
                script::say("done");
            }
            "rate" => script::say(&format!("rate {}", rate())),
            _ => return,
        }
    }
}
