//! `dial9-bpf run`: a program from its first instruction to its end.
//!
//! In: checked arguments, with a command line. Out: what `attach` has, and the
//! program's exit code. Never: an instruction of the program before the links are
//! live; a program that runs on when they cannot be.
//!
//! The program is in the foreground: what the keyboard sends, it gets itself, and what
//! others send us is passed on. Its end is that of the recording.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    iterator::Signals,
};

use crate::{
    args::RunArgs,
    command::{
        attach::{care_of, record},
        forked,
    },
    descriptors, exit,
    launch::{Launched, code_of},
    session::Until,
    stderr, stop,
};

/// Runs the subcommand; the value is the exit code.
///
/// # Errors
/// Whatever `exit::of_failure` has a code for.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<u8> {
    if let Some(forked) = args.record.forked {
        return forked::run(forked.get(), &args.record);
    }
    let cut = stop::keyboard()?;
    // Before our limits are raised: it is to have those that we were given.
    let mut launched = Launched::hold(&args.command)?;
    pass_on(launched.pid(), Arc::clone(&cut))?;
    descriptors::raise_limit();
    let care = care_of(&args.record);
    let recorded = record(
        launched.pid(),
        &args.record,
        (Until::Ended, &cut),
        care,
        || {
            if let Err(error) = launched.release() {
                // The recording sees its end.
                stderr::say(format_args!("cannot let the program go: {error}"));
            }
        },
    );
    let code = recorded.map_err(descriptors::explain)?;
    let status = launched.wait()?;
    Ok(if code == exit::DONE {
        code_of(status)
    } else {
        code
    })
}

/// Passes on what others send us to end the program; once it has ended, to what follows
/// its forks.
fn pass_on(pid: u32, cut: Arc<AtomicBool>) -> io::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut signals = Signals::new([SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("dial9-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if has_ended(&process) {
                    cut.store(true, Ordering::Relaxed);
                } else {
                    pass(&process, signal);
                }
            }
        })?;
    Ok(())
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
}

fn pass(process: &OwnedFd, signal: i32) {
    let signal = if signal == SIGTERM {
        Signal::TERM
    } else {
        Signal::HUP
    };
    // It may have ended.
    let _ = pidfd_send_signal(process.as_fd(), signal);
}
