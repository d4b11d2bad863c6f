//! A server of somebody else's, on a loopback port.
//!
//! In: a command that takes a port. Out: the server once it accepts connections,
//! and what it answers. Never: one that outlives its owner.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ureq::Agent;

use crate::shell::Running;

/// Most that a server takes to begin, and to answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// The server. It ends with this value.
pub(crate) struct Listening {
    /// Where it listens: `http://ADDRESS`.
    pub(crate) url: String,
    /// For requests to it.
    pub(crate) agent: Agent,
    /// Its process.
    pub(crate) process: Running,
}

impl Listening {
    /// Starts the server that `command` makes of a free port. What it prints goes
    /// to `log`.
    pub(crate) fn start(log: &Path, command: impl FnOnce(u16) -> Command) -> Result<Self> {
        let port = free_port()?;
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let mut command = command(port);
        command.stdout(file.try_clone()?).stderr(file);
        let mut process = Running::start(&mut command)?;
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        let listens = process.wait_for(PATIENCE, connect);
        listens.with_context(|| format!("no server: {command:?}, see {}", log.display()))?;
        Ok(Self {
            url: format!("http://127.0.0.1:{port}"),
            agent: agent(),
            process,
        })
    }
}

/// Requests go to loopback, whatever proxy the environment names.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .proxy(None)
        .timeout_global(Some(PATIENCE))
        .build()
        .into()
}

/// A port that nobody has. Another process could take it before it is used; its
/// user then ends, which is said.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
