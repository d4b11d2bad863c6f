//! The demo server and its load, for benches.
//!
//! In: a server that `cargo xtask bench` has built. Out: its pid. Never: a
//! server or a load that outlives its owner.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::target_dir::target_dir;

/// The server, and its load where it was asked for.
#[derive(Debug)]
pub struct Demo(Vec<Child>);

impl Demo {
    /// Starts the server.
    ///
    /// # Panics
    ///
    /// When it is not built, or does not start.
    pub fn serve() -> Self {
        let mut server = spawn(Command::new(program()).args(["serve", "--seconds", "600"]));
        wait_for_line(&mut server);
        Self(vec![server])
    }

    /// Starts the server and the load that `cargo xtask demo` gives it.
    ///
    /// # Panics
    ///
    /// As [`Demo::serve`].
    pub fn under_load() -> Self {
        let mut server = spawn(Command::new(program()).args(["serve", "--seconds", "600"]));
        let line = wait_for_line(&mut server);
        let address = line
            .split_whitespace()
            .nth(1)
            .expect("`listening ADDR pid N`");
        let load = ["load", address, "--seconds", "600"];
        Self(vec![server, spawn(Command::new(program()).args(load))])
    }

    /// The server's pid.
    pub fn pid(&self) -> u32 {
        self.0[0].id()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> PathBuf {
    let path = target_dir()
        .expect("cargo built us")
        .join("demo/release/demo");
    assert!(
        path.exists(),
        "{} is not built: cargo xtask bench does",
        path.display()
    );
    path
}

fn spawn(command: &mut Command) -> Child {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn wait_for_line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("it is piped");
    BufReader::new(out)
        .read_line(&mut line)
        .expect("it prints a line");
    line
}
