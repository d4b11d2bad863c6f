//! The protocol with the test: one word a line, on stdin and stdout.
//!
//! In: lines. Out: lines, flushed. Never: a thread; reading blocks the main
//! thread, which runs no task.

use std::{
    io::{self, BufRead as _, Write as _},
    process,
};

/// Says `line`.
///
/// # Panics
///
/// When nobody listens any more.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("the test reads this");
}

/// Says that the program can be attached to.
pub fn say_ready() {
    say(&format!("ready {}", process::id()));
}

/// The next word of the test; `exit` also when the test is gone.
pub fn hear() -> String {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => String::from("exit"),
        Ok(_) => line.trim().to_owned(),
    }
}

/// Waits for exactly `word`; ends the program on anything else.
pub fn expect(word: &str) {
    let heard = hear();
    if heard != word {
        eprintln!("expected {word:?}, heard {heard:?}");
        process::exit(2);
    }
}
