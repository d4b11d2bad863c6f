//! The recorder of a process that was forked by a target, for the recorder of that.
//!
//! In: a pid and the other's arguments. Out: what `attach` has, said on stderr, in a
//! directory below the other's. Never: a recorder that outlives the other; a failure
//! where the process has gone or has nothing to trace.

use std::{
    io::{self, Read as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use dial9_bpf_attach::AttachError;

use crate::{
    args::RecordArgs, command::attach::record, descriptors, exit, forks::Care, session::Until,
    stderr, stop,
};

/// Time between two pushes, once the other is gone or has us hurry.
const PUSH: Duration = Duration::from_millis(50);

/// Records it; the value is the exit code.
///
/// # Errors
/// Whatever `exit::of_failure` has a code for, but for what is normal.
pub(crate) fn run(pid: u32, args: &RecordArgs) -> anyhow::Result<u8> {
    descriptors::raise_limit();
    let stop = stop::flag()?;
    hear(Arc::clone(&stop))?;
    let args = RecordArgs {
        output: args.output.join(format!("fork-{pid}")),
        // The other sees to it.
        duration: None,
        ..args.clone()
    };
    let recorded = record(pid, &args, (Until::Followed, &stop), Care::Count, || {});
    recorded.map_err(descriptors::explain).or_else(|error| {
        // What is not in its /proc any more has gone with it, or with its program.
        let is_gone = matches!(error.downcast_ref(), Some(AttachError::Proc { .. }));
        let code = if is_gone {
            exit::NO_TARGET
        } else {
            exit::of_failure(&error)
        };
        if [exit::NO_TARGET, exit::NOTHING_TO_TRACE].contains(&code) {
            stderr::say(format_args!("not recorded: {error:#}"));
            return Ok(code);
        }
        Err(error)
    })
}

/// Hears what the other asks for: each byte is a stop, the end is one that waits for
/// nothing.
fn hear(stop: Arc<AtomicBool>) -> io::Result<()> {
    let hearing = thread::Builder::new().name("dial9-follows".to_owned());
    hearing.spawn(move || {
        for _ in io::stdin().lock().bytes().map_while(Result::ok) {
            stop.store(true, Ordering::Relaxed);
        }
        loop {
            stop.store(true, Ordering::Relaxed);
            thread::sleep(PUSH);
        }
    })?;
    Ok(())
}
